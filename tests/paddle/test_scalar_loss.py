"""A loss is one number, as Paddle's `append_backward` asserts: an error names the loss, its shape and the remedy."""

import numpy as np
import pytest

from amp_transpiler import CPUPlace, decorate, optimizer, static, tensor
from amp_transpiler.errors import InputError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.static.onnx_import import from_onnx
from tests import support


def scores(rows=None):
    x, y = static.data("x", [rows, 4]), static.data("y", [rows, 1], "int64")
    return static.nn.fc(x, 3), y


def sample_losses(rows=None):
    out, y = scores(rows)
    return functional.cross_entropy(out, y, reduction="none")


LOSSES = [
    (sample_losses, r"shape \[-1, 1\], with an open dimension"),
    (lambda: sample_losses(8), r"shape \[8, 1\], with 8 elements"),
    (lambda: scores(8)[0], r"shape \[8, 3\], with 24 elements"),
    (lambda: scores()[0].astype("float64").astype("int64"), "is int64"),
]
WAYS = {
    "append_backward": static.append_backward,
    "backward": lambda loss: optimizer.SGD(0.1).backward(loss),
    "minimize": lambda loss: optimizer.SGD(0.1).minimize(loss),
    "decorated": lambda loss: decorate(optimizer.SGD(0.1)).minimize(loss),
    "decorated, low": lambda loss: decorate(optimizer.SGD(0.1), level="O2", dtype="bfloat16").minimize(loss),
}


@pytest.fixture
def main():
    program, startup = static.Program(), static.Program()
    with static.program_guard(program, startup):
        yield program


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("make", "message"), LOSSES, ids=["free batch", "8 x 1", "8 x 3", "integers"])
def test_a_loss_that_is_no_number_is_refused(main, make, message, way):
    loss = make()
    nodes = len(main.model.graph)
    with pytest.raises(InputError, match=message) as raised:
        way(loss)
    assert f"'{loss.name}'" in str(raised.value)
    assert len(main.model.graph) == nodes
    assert "paddle.mean(loss)" in str(raised.value) or "float" in str(raised.value)


@pytest.mark.parametrize("shape", [[], [1], [1, 1]])
def test_a_loss_of_one_element_is_taken_whatever_its_rank(main, shape):
    out, y = scores()
    loss = tensor.reshape(tensor.mean(functional.cross_entropy(out, y)), shape)
    pairs = static.append_backward(loss)
    assert [str(p.name)[-3:] for p, _ in pairs] == ["w_0", "b_0"]


def unranked():
    """A model whose loss is of a rank that only a run can tell: the shape is an input."""
    text = """(float[n,3] x, int64[r] shape) => (loss) {
        h = MatMul(x, w)
        m = ReduceMean<keepdims=1>(h, axes)
        loss = Reshape(h, shape)
    }"""
    model = support.parse(text, w=support.array(3, 1), axes=np.array([0], np.int64))
    model.graph.output[0].type.tensor_type.elem_type = 1
    return model


@pytest.mark.parametrize("decorated", [False, True])
def test_a_loss_of_unknown_rank_is_checked_by_the_run(decorated):
    startup, scope = static.Program(), static.Scope()
    main = from_onnx(unranked(), startup)
    loss = main.var("loss")
    assert loss.value.shape is None
    sgd = optimizer.SGD(0.1)
    (decorate(sgd, level="O1", dtype="bfloat16") if decorated else sgd).minimize(loss, startup)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    before = scope["w"]
    x = np.ones((2, 3), np.float32)
    with pytest.raises(InputError, match=r"the loss must have one element, and 'loss' has more: .*paddle.mean"):
        executor.run(main, {"x": x, "shape": np.array([2])}, [loss], scope=scope)
    assert (scope["w"] == before).all()
    executor.run(main, {"x": x[:1], "shape": np.array([1, 1])}, [loss], scope=scope)
    assert (scope["w"] != before).any()
