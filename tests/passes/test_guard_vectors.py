"""Products of a transposed matrix and a vector, which ONNX Runtime's default session computes wrongly."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.vector_products import vector_products
from amp_transpiler.paddle import static, tensor
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.passes.guard_vectors import GuardVectors
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.program.program import Persistable
from tests import support
from tests.support import array, parse, run

T = "t = Transpose <perm = [1, 0]> (x)"
FLAT = "(float[3,4] x, float[3] v) => (float[4] y)"
FREE = "(float[a,b] x, float[a] v) => (float[b] y)"
BATCH = "(float[2,3,4] x, float[3] v) => (float[2,4] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, v) }"
ROWS = {
    # what: (graph, opset, whether it is written otherwise)
    "transposed": (f"{FLAT} {{ {T} y = MatMul (t, v) }}", 18, True),
    "by default": (f"{FLAT} {{ t = Transpose (x) y = MatMul (t, v) }}", 18, True),
    "before opset 13": (f"{FLAT} {{ {T} y = MatMul (t, v) }}", 9, True),
    "a batch": (BATCH, 18, True),
    "free sizes": (f"{FREE} {{ {T} y = MatMul (t, v) }}", 18, True),
    "scaled": (f"{FLAT} <float k = {{2}}> {{ {T} s = Mul (t, k) y = MatMul (s, v) }}", 18, True),
    "a vector on the left": (f"(float[3,4] x, float[4] v) => (float[3] y) {{ {T} y = MatMul (v, t) }}", 18, False),
    "a matrix": (f"(float[3,4] x, float[3,1] v) => (float[4,1] y) {{ {T} y = MatMul (t, v) }}", 18, False),
    "not transposed": ("(float[3,4] x, float[4] v) => (float[3] y) { y = MatMul (x, v) }", 18, False),
    "something between": (f"{FLAT} {{ {T} r = Relu (t) y = MatMul (r, v) }}", 18, False),
}


@pytest.mark.parametrize("name", ROWS)
def test_it_is_written_as_a_product_of_matrices(name):
    text, opset, rewritten = ROWS[name]
    before = parse(text, opset=opset)
    model = ir.from_proto(before)
    propagate_types(model)
    assert bool(vector_products(model)) is rewritten
    assert run_pass(GuardVectors(), model).modified is rewritten
    assert ("Reshape" in [node.op_type for node in model.graph]) is rewritten
    sizes = {"a": 3, "b": 4}
    dims = [[d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim] for v in before.graph.input]
    feeds = dict(zip("xv", (array(*shape, seed=7) for shape in dims), strict=True))
    result = run(ir.to_proto(model), feeds, optimized=True)["y"]
    np.testing.assert_allclose(result, run(before, feeds)["y"], rtol=1e-5, atol=1e-6)
    assert not run_pass(GuardVectors(), model).modified


PRODUCT = "(float[8,16] x, float[8] v) => (float[16] y) { t = Transpose <perm = [1, 0]> (x) y = MatMul (t, v) }"
FEEDS = {"x": array(8, 16), "v": array(8, seed=1)}
RIGHT = FEEDS["x"].T @ FEEDS["v"]


@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
def test_a_converted_file_is_right_in_a_session_of_the_users(level, tmp_path):
    report = amp.transpile(parse(PRODUCT), tmp_path / "low.onnx", level=level, inputs=FEEDS, prefer="size")
    assert report.outputs["y"].relative < 0.001, "the fp32 reference is right, too"
    (value,) = ort.InferenceSession(tmp_path / "low.onnx", providers=["CPUExecutionProvider"]).run(None, FEEDS)
    assert support.relative(RIGHT, value) < 0.001


def test_our_own_sessions_are_right():
    np.testing.assert_allclose(amp.Session(parse(PRODUCT), amp.CPUPlace()).run(FEEDS)[0], RIGHT, rtol=1e-5, atol=1e-5)


def step():
    """A training step whose loss holds the product; its weight is the vector."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [8, 16])
        v = create_persistable(Persistable("v", "parameter"), (8,), 0.5)
        loss = tensor.mean(tensor.matmul(tensor.transpose(x, [1, 0]), v))
        optimizer.SGD(1.0).minimize(loss, startup)
    return main, startup, loss


def test_so_are_an_executor_and_a_written_training_step(tmp_path):
    main, startup, loss = step()
    scope = static.Scope()
    static.Executor(amp.CPUPlace()).run(startup, scope=scope)
    scope["v"] = FEEDS["v"]
    static.save_training_program(main, tmp_path / "step", fetch_list=[loss], scope=scope)
    feed = {"x": FEEDS["x"]}
    session = ort.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    state = {info.name: scope[info.name] for info in session.get_inputs() if info.name != "x"}
    by_file = dict(zip([o.name for o in session.get_outputs()], session.run(None, {**feed, **state}), strict=True))
    (value,) = static.Executor(amp.CPUPlace()).run(main, feed, [loss], scope=scope)
    right = RIGHT.mean()
    np.testing.assert_allclose([value, by_file[loss.name]], [right, right], rtol=1e-5)
