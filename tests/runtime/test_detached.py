"""A value that a caller keeps of a run does not keep the rest of it."""

import numpy as np
import onnx
import pytest

from amp_transpiler.paddle import static
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.optimizer import SGD
from amp_transpiler.runtime.memory import current_memory
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.values import detached, from_ort, to_ort

TYPES = ["float32", "float16", "bfloat16", "float64", "bool", "int8", "int32", "int64", "uint8", "uint64"]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_a_detached_value_is_the_same(name, shape):
    dtype = np.dtype(name) if name != "bfloat16" else onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    value = to_ort(np.ones(shape, dtype))
    alone = detached(value)
    assert alone is not value
    assert (alone.data_ptr(), alone.element_type()) == (value.data_ptr(), value.element_type())
    np.testing.assert_array_equal(from_ort(alone), from_ort(value))
    assert from_ort(alone).dtype == dtype


def test_types_that_cannot_be_detached_stay_as_they_are():
    value = to_ort(np.ones(2, onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT8E4M3FN)))
    assert detached(value) is value


def test_losses_that_are_kept_do_not_keep_parameters():
    """Twenty losses of a network of 16 MB."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 2048])
        loss = F.mse_loss(static.nn.fc(x, 2048), x)
        SGD(0.1).minimize(loss)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    feed = {"x": np.ones((2, 2048), np.float32)}

    def step():
        return executor.run(main, feed, [loss], scope=scope, return_numpy=False)

    losses = [step() for _ in range(3)]
    before = current_memory()
    if before is None:
        pytest.skip("the memory of this process is not known")
    losses += [step() for _ in range(20)]
    assert current_memory() - before < 6 * 16 * 2**20
    assert len(losses) == 23
