"""State that lasts: checkpoints, inference models, and whole training steps as files."""

import json
import logging
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from amp_transpiler.errors import InputError, OutputError
from amp_transpiler.paddle.framework.backward import append_backward
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.framework.random_state import ensure_random_state
from amp_transpiler.paddle.static import export, io
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.program.program import Persistable, Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

SCRIPT = pathlib.Path(__file__).parents[3] / "examples" / "train_with_onnxruntime.py"
RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.normal(size=(4, 3)).astype(np.float32), "y": RANDOM.normal(size=(4, 2)).astype(np.float32)}


def momentum_program(*, dropout=False):
    """Return main and startup programs of a linear regression trained with momentum."""
    main, startup = Program(), Program()
    startup.random_seed = 7
    with program_guard(main, startup):
        x, y = data("x", [None, 3]), data("y", [None, 2])
        w = create_persistable(Persistable("w", "parameter"), (3, 2), lambda r, s: r.normal(0, 1, s))
        v = create_persistable(Persistable("w_velocity", "state"), (3, 2), 0.0)
        if dropout:
            ensure_random_state(main, startup)
            mode, ratio = main.builder().constant(np.array(True)), main.builder().constant(np.float32(0.5))
            x = main.var(str(main.builder().op("Dropout", [x.value, ratio, mode]).name))
        error = (x @ w) - y
        loss = main.var(str(main.builder().mean((error * error).value, keepdims=False).name))
        ((_, gradient),) = append_backward(loss)
        builder = main.builder("optimize")
        velocity = builder.add(builder.mul(v.value, 0.9), gradient.value)
        main.updates["w_velocity"] = str(velocity.name)
        main.updates["w"] = str(builder.sub(w.value, builder.mul(velocity, 0.1)).name)
    return main, startup, loss, error


def started(startup):
    scope, executor = Scope(), Executor(CPUPlace())
    executor.run(startup, scope=scope)
    return scope, executor


def plain(name="w", dtype=ir.DataType.FLOAT, shape=(3, 2), kind="parameter"):
    """Return a program with one persistable value."""
    program = Program()
    program.add_persistable(Persistable(name, kind), dtype, shape)
    return program


def test_a_resumed_run_is_bit_identical(tmp_path):
    main, startup, loss, _ = momentum_program(dropout=True)
    scope, executor = started(startup)
    whole = [executor.run(main, BATCH, [loss], scope)[0] for _ in range(3)]
    io.save(main, tmp_path / "checkpoint", scope)
    whole += [executor.run(main, BATCH, [loss], scope)[0] for _ in range(3)]
    main, startup, loss, _ = momentum_program(dropout=True)
    resumed, executor = started(startup)
    io.load(main, tmp_path / "checkpoint", resumed)
    rest = [executor.run(main, BATCH, [loss], resumed)[0] for _ in range(3)]
    assert [x.tobytes() for x in whole[3:]] == [x.tobytes() for x in rest]
    assert set(resumed) == set(main.persistables)
    assert all(resumed[name].tobytes() == scope[name].tobytes() for name in scope)


def test_the_file_is_what_safetensors_reads(tmp_path):
    main, startup, *_ = momentum_program(dropout=True)
    scope, _ = started(startup)
    io.save(main, tmp_path / "deep" / "er" / "state.safetensors", scope)
    path = tmp_path / "deep" / "er" / "state.safetensors"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for name, array in load_file(path).items():
        np.testing.assert_array_equal(array, scope[name])
        assert array.shape == scope[name].shape
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    assert metadata["format_version"] == "1"
    assert json.loads(metadata["persistables"])["w_velocity"] == "state"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(3, 2), (), (0, 2)])
def test_element_types_and_shapes_survive(tmp_path, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 2).astype(dtype)
    program, scope, back = plain(dtype=ir.DataType.from_numpy(array.dtype), shape=shape), Scope(), Scope()
    scope["w"] = array
    io.save(program, tmp_path / "state", scope)
    io.load(program, tmp_path / "state", back)
    assert back["w"].dtype == array.dtype
    assert back["w"].shape == shape
    assert back["w"].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (np.float16, ir.DataType.FLOAT),
        (np.float32, ir.DataType.FLOAT16),
        (ml_dtypes.bfloat16, ir.DataType.FLOAT),
        (np.float32, ir.DataType.BFLOAT16),
    ],
)
def test_floats_of_another_width_are_converted_and_the_log_says_so(tmp_path, caplog, held, wanted):
    scope, back = Scope(), Scope()
    scope["w"] = np.linspace(-1, 1, 6).reshape(3, 2).astype(held)
    io.save(plain(dtype=ir.DataType.from_numpy(np.dtype(held))), tmp_path / "state", scope)
    caplog.set_level(logging.INFO, "amp_transpiler.paddle.static.io")
    io.load(plain(dtype=wanted), tmp_path / "state", back)
    assert back["w"].dtype == wanted.numpy()
    assert back["w"].tobytes() == scope["w"].astype(wanted.numpy()).tobytes()
    assert "'w' is " in caplog.text
    assert "converted" in caplog.text


def test_numbers_that_overflow_when_converted_are_warned_of(tmp_path, caplog):
    scope, back = Scope(), Scope()
    scope["w"] = np.array([[1e6, 1], [np.inf, 0], [-1e6, 0]], np.float32)
    io.save(plain(), tmp_path / "state", scope)
    io.load(plain(dtype=ir.DataType.FLOAT16), tmp_path / "state", back)
    assert "'w': 2 numbers are beyond the range of float16" in caplog.text


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda: plain(shape=(2, 3)), r"'w' has shape \[3, 2\], the program wants \[2, 3\]"),
        (lambda: plain(dtype=ir.DataType.INT64), "'w' is FLOAT, the program wants INT64"),
        (lambda: plain(name="other"), "has no value for other"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, program, message):
    main, startup, *_ = momentum_program()
    scope, _ = started(startup)
    io.save(main, tmp_path / "state", scope)
    target, back = program(), Scope()
    target.add_persistable(Persistable("w_velocity", "state"), ir.DataType.FLOAT, (3, 2))
    back["w_velocity"] = np.full((3, 2), 5, np.float32)
    with pytest.raises(InputError, match=message):
        io.load(target, tmp_path / "state", back)
    assert list(back) == ["w_velocity"]
    assert (back["w_velocity"] == 5).all()


@pytest.mark.parametrize("damage", [lambda raw: raw[:-4], lambda raw: raw[:5], lambda _: b"no tensors" * 9])
def test_a_damaged_file_is_an_input_error(tmp_path, damage):
    scope, path = Scope(), tmp_path / "state.safetensors"
    scope["w"] = np.ones((3, 2), np.float32)
    io.save(plain(), path, scope)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="damaged, or no safetensors file"):
        io.load(plain(), path, scope)


def test_a_missing_file_and_a_newer_format_are_input_errors(tmp_path, monkeypatch):
    scope = Scope()
    with pytest.raises(InputError, match="no such file"):
        io.load(plain(), tmp_path / "nothing", scope)
    with pytest.raises(InputError, match="the scope has no value for w"):
        io.save(plain(), tmp_path / "state", scope)
    scope["w"] = np.ones((3, 2), np.float32)
    monkeypatch.setattr(io, "VERSION", "2")
    io.save(plain(), tmp_path / "state", scope)
    monkeypatch.undo()
    with pytest.raises(InputError, match="its format is version 2"):
        io.load(plain(), tmp_path / "state", scope)


class _Failing(Scope):
    """Gives the second value for the file no more."""

    def __init__(self, error):
        super().__init__()
        self.error, self.asked = error, 0

    def __getitem__(self, name):
        self.asked += 1
        if self.asked > 3:  # types of both, then the first value
            raise self.error
        return super().__getitem__(name)


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("full"), OutputError)]
)
def test_an_interrupted_save_leaves_the_old_file(tmp_path, error, raised):
    program, scope = plain(), Scope()
    program.add_persistable(Persistable("v", "state"), ir.DataType.FLOAT, (3, 2))
    scope["w"] = scope["v"] = np.ones((3, 2), np.float32)
    io.save(program, tmp_path / "state", scope)
    before = (tmp_path / "state.safetensors").read_bytes()
    failing = _Failing(error)
    failing["w"] = failing["v"] = np.zeros((3, 2), np.float32)
    with pytest.raises(raised):
        io.save(program, tmp_path / "state", failing)
    assert failing.asked == 4
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]
    assert (tmp_path / "state.safetensors").read_bytes() == before


# ---- models to predict with ----


def test_an_inference_model_predicts_what_the_program_does(tmp_path):
    main, startup, _, _ = momentum_program(dropout=True)
    with program_guard(main, startup):
        out = main.var("x") @ main.var("w")
    scope, executor = started(startup)
    executor.run(main, BATCH, [], scope)
    export.save_inference_model(
        tmp_path / "new" / "linear", [main.var("x")], [out], executor, program=main, scope=scope
    )
    path = tmp_path / "new" / "linear.onnx"
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    expected = BATCH["x"] @ scope["w"]
    np.testing.assert_allclose(session.run(None, {"x": BATCH["x"]})[0], expected, rtol=1e-5)
    program, feeds, fetches = export.load_inference_model(tmp_path / "new" / "linear", executor)
    assert feeds == ["x"]
    predicted = executor.run(program, {"x": BATCH["x"]}, fetches, Scope())[0]
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def test_dropout_does_nothing_in_an_inference_model(tmp_path):
    main, startup, _, error = momentum_program(dropout=True)
    scope, executor = started(startup)
    export.save_inference_model(tmp_path / "m.onnx", [main.var("y"), main.var("x")], [error], executor, scope=scope)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["y", "x"]
    np.testing.assert_allclose(session.run(None, BATCH)[0], BATCH["x"] @ scope["w"] - BATCH["y"], rtol=1e-5, atol=1e-6)


def test_inference_models_need_their_inputs_and_values(tmp_path):
    main, startup, loss, _ = momentum_program()
    scope, executor = started(startup)
    with pytest.raises(InputError, match="also depends on y"):
        export.save_inference_model(tmp_path / "m", [main.var("x")], [loss], executor, scope=scope)
    with pytest.raises(InputError, match="the scope has no value for 'w'"):
        export.save_inference_model(tmp_path / "m", [main.var("x"), main.var("y")], [loss], executor, scope=Scope())
    with pytest.raises(InputError, match="no variable 'w@GRAD'"):
        export.save_inference_model(tmp_path / "m", [main.var("x")], [main.var("w@GRAD")], executor, scope=scope)
    assert not list(tmp_path.iterdir())


# ---- programs to train with ----


@pytest.mark.parametrize("feed", [None, BATCH, {"x": (4, 3)}])
@pytest.mark.parametrize("dropout", [False, True])
def test_plain_onnxruntime_trains_with_a_written_step(tmp_path, feed, dropout):
    main, startup, loss, _ = momentum_program(dropout=dropout)
    scope, executor = started(startup)
    export.save_training_program(main, tmp_path / "step.onnx", feed, [loss], scope)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step.onnx", "step.state.safetensors"]
    model = onnx.load(tmp_path / "step.onnx")
    assert not {node.op_type for node in model.graph.node} & {"Dropout", "BatchNormalization"}
    np.savez(tmp_path / "batch.npz", **BATCH)
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "step.onnx", tmp_path / "batch.npz", "3"],
        check=True,
        capture_output=True,
        text=True,
    )
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    expected = [float(executor.run(main, BATCH, [loss], scope)[0]) for _ in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for name, array in load_file(tmp_path / "step.state.safetensors").items():
        np.testing.assert_allclose(array, scope[name], rtol=1e-6)


def test_training_programs_that_cannot_be_written(tmp_path):
    main, startup, loss, _ = momentum_program()
    scope, _ = started(startup)
    with pytest.raises(InputError, match="updates nothing"):
        export.save_training_program(main.clone(for_test=True), tmp_path / "s", scope=scope)
    with pytest.raises(InputError, match="run the startup program first"):
        export.save_training_program(main, tmp_path / "s", scope=Scope())
    with pytest.raises(InputError, match=r"input 'y': got shape \[5, 2\]"):
        export.save_training_program(main, tmp_path / "s", {"x": (4, 3), "y": (5, 2)}, [loss], scope)
    assert not list(tmp_path.iterdir())
