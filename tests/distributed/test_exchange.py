"""Values of ONNX Runtime and tensors of torch in the same memory, and what is done before any rank is met."""

import sys

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler import distributed
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.paddle.distributed import environment
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.distributed.executor import DataParallelOptions
from amp_transpiler.runtime.distributed.joined import joined_world
from amp_transpiler.runtime.distributed.micro_batches import joined, split_feeds
from amp_transpiler.runtime.distributed.start import is_launched
from amp_transpiler.runtime.places import to_host
from amp_transpiler.runtime.values import to_ort

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.bool_], ids=str
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
def test_torch_writes_to_the_memory_of_a_value(dtype, shape):
    torch = pytest.importorskip("torch", reason="install the extra [distributed]")
    from amp_transpiler.runtime.distributed.exchange import as_tensor, as_value

    value = to_ort(np.ones(shape, dtype))
    tensor = as_tensor(value)
    assert tensor.data_ptr() == value.data_ptr()
    tensor.zero_()
    assert not np.any(to_host(value).astype(np.float32))
    back = as_value(torch.ones_like(tensor), ir.DataType.from_numpy(np.dtype(dtype)))
    assert ir.DataType(back.element_type()) == ir.DataType.from_numpy(np.dtype(dtype))
    assert to_host(back).shape == shape
    assert np.all(to_host(back).astype(np.float32) == 1)


@pytest.fixture
def program():
    """Two inputs, one of them without a batch, and a loss."""
    program = Program()
    x = program.add_input("x", ir.DataType.FLOAT, [None, 2])
    program.add_input("factor", ir.DataType.FLOAT, [1])
    program.builder().op("Identity", [x], name="y")
    program.builder().op("ReduceMean", [x], {"keepdims": 0}, name="loss")
    return program


def test_a_batch_is_split_where_it_is_open(program):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    first, second = split_feeds(program, {"x": x, "factor": np.ones(1)}, 2)
    np.testing.assert_array_equal(first["x"], x[:2])
    np.testing.assert_array_equal(second["x"], x[2:])
    assert first["factor"].shape == second["factor"].shape == (1,)
    with pytest.raises(InputError, match="a batch of 4 cannot be split into 3"):
        split_feeds(program, {"x": x}, 3)
    with pytest.raises(InputError, match="no input has an open first dimension"):
        split_feeds(program, {"factor": np.ones(1)}, 2)


def test_results_of_micro_batches_are_put_together(program):
    pytest.importorskip("torch", reason="install the extra [distributed]")
    halves = [to_ort(np.full((2, 2), number, np.float16)) for number in (1, 2)]
    assert to_host(joined(program, "y", halves)).tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
    losses = [to_ort(np.array(number, np.float32)) for number in (1, 2)]
    assert to_host(joined(program, "loss", losses)) == 1.5
    counts = [to_ort(np.array(number)) for number in (1, 2)]
    assert to_host(joined(program, "loss", counts)) == 2


@pytest.mark.parametrize("wrong", [{"accumulate_steps": 0}, {"accumulate_steps": 1.5}, {"bucket_bytes": -1}], ids=str)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be a whole number"):
        DataParallelOptions(**wrong)


def test_what_is_missing_is_named(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    assert is_launched(LAUNCHED)
    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    with pytest.raises(EnvironmentProblem, match=r"call distributed.init_parallel_env\(\) first"):
        distributed.DataParallelExecutor()
    monkeypatch.setitem(sys.modules, "torch", None)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'amp-transpiler\[distributed\]'"):
        distributed.init_parallel_env()


@pytest.mark.parametrize("name", ["WORLD_SIZE", "PADDLE_TRAINERS_NUM"])
def test_one_of_several_that_torchrun_did_not_start_is_told(name, monkeypatch):
    for other in LAUNCHED:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "2")
    for begin in (distributed.init_parallel_env, distributed.fleet.init):
        with pytest.raises(EnvironmentProblem, match=r"one of several, but RANK.* is not set: .*torchrun --nproc"):
            begin()


def test_a_process_that_torchrun_did_not_start_goes_on_alone(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "_alone", [])
    with pytest.raises(OptionError, match="timeout must be a positive number"):
        distributed.init_parallel_env(timeout=0)
    env = distributed.init_parallel_env()
    assert (env.rank, env.world_size, env.place) == (0, 1, distributed.init_parallel_env().place)
    assert joined_world() is None
    assert distributed.mean(3) == 3.0
    distributed.barrier()
