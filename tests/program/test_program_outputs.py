"""Outputs that are set by hand on a program: every way out writes them, and a program without any is refused."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.errors import InputError
from amp_transpiler.paddle.utils import unique_name
from tests import support
from tests.support import array, parse

X = {"x": array(4, 4)}


def built(outputs):
    """A program without parameters: x -> x @ x -> relu, and a value that no output needs."""
    main = static.Program()
    with unique_name.guard(), static.program_guard(main, static.Program()):
        x = static.data("x", [4, 4])
        y = F.relu(x @ x)
        F.sigmoid(y)
    main.outputs = [y.name] if outputs is None else outputs
    return main


def loaded():
    return amp.load(parse("(float[4,4] x) => (float[4,4] y) { h = MatMul (x, w) y = Relu (h) }", w=array(4, 4)))


def trained():
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        loss = F.mse_loss(static.nn.fc(static.data("x", [4, 4]), 4), main.var("x"))
        amp.optimizer.SGD(0.1).minimize(loss, startup)
    return main, loss


def saved(program, folder):
    amp.save(program, folder / "model.onnx")
    return onnx.load(folder / "model.onnx")


def transpiled(program, folder):
    amp.transpile(program, folder / "model.onnx", level="O2")
    return onnx.load(folder / "model.onnx")


WRITERS = {
    "save": saved,
    "to_onnx": lambda program, folder: program.to_onnx(),
    "transpile": transpiled,
    "copy": lambda program, folder: (
        amp.transpile(program, folder / "copy.onnx", level="O0"),
        onnx.load(folder / "copy.onnx"),
    )[1],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_outputs_set_by_hand_are_written(writer, tmp_path):
    model = WRITERS[writer](built(None), tmp_path)
    onnx.checker.check_model(model, full_check=True)
    [output] = model.graph.output
    assert (output.name, output.type.tensor_type.elem_type) == ("Relu_out0", onnx.TensorProto.FLOAT)
    assert "Sigmoid" not in {node.op_type for node in model.graph.node}, "what no output needs is dropped"


@pytest.mark.parametrize("writer", WRITERS)
def test_they_win_over_those_of_a_loaded_model(writer, tmp_path):
    program = loaded()
    program.outputs = ["h", "x"]
    model = WRITERS[writer](program, tmp_path)
    assert [value.name for value in model.graph.output] == ["h", "x__out"], "a graph input goes through Identity"
    assert [value.name for value in program.model.graph.outputs] == ["y"], "the program is not changed"


@pytest.mark.parametrize("writer", ["save", "to_onnx"])
def test_a_training_program_is_written_with_its_updates(writer, tmp_path):
    main, loss = trained()
    main.outputs = [loss.name]
    model = WRITERS[writer](main, tmp_path)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == [loss.name, *main.updates.values()]


@pytest.mark.parametrize("writer", [*WRITERS, "Session"])
@pytest.mark.parametrize(
    ("outputs", "message"), [([], r"no outputs.*set program\.outputs"), (["nothing"], "no variable 'nothing'")]
)
def test_without_outputs_it_is_refused(writer, outputs, message, tmp_path):
    program = built(outputs)
    with pytest.raises(InputError, match=message):
        amp.Session(program, amp.CPUPlace()) if writer == "Session" else WRITERS[writer](program, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_session_runs_them():
    [y] = amp.Session(built(None), amp.CPUPlace()).run(X)
    np.testing.assert_allclose(y, np.maximum(X["x"] @ X["x"], 0), rtol=1e-5, atol=1e-6)


def test_a_session_emulates_them():
    program = built(None)
    amp.cast_model_to_fp16(program, use_fp16_guard=False)
    session = amp.Session(program, amp.CPUPlace())
    assert session.emulated
    np.testing.assert_allclose(session.run(X)[0], np.maximum(X["x"] @ X["x"], 0), rtol=1e-2, atol=1e-2)


def test_casting_keeps_their_types_and_those_of_the_model():
    program = loaded()
    program.outputs = ["h"]
    amp.cast_model_to_fp16(program)
    assert support.dtypes(program, "MatMul") == ["FLOAT16"]
    assert program.value("h").dtype.name == program.model.graph.outputs[0].dtype.name == "FLOAT"
    onnx.checker.check_model(program.to_onnx(), full_check=True)
