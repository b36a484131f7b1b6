"""The faults of ONNX Runtime that are guarded against: each is still there, and each guard and test exists."""

import ast
import importlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from amp_transpiler.child_process.child import RuntimeCrash
from amp_transpiler.child_process.remote import open_file, open_program
from amp_transpiler.runtime.ort import ORT_ERRORS
from tests.runtime.onnxruntime_faults import FAULTS, table
from tests.support import LOW_NAMES, NUMPY, array, parse

TESTS = pathlib.Path(__file__).parents[1]
F16 = np.float16
CANNOT_TELL = 3  # the exit status of lab/placement.py where this machine lacks gcc, or the CUDA provider
RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


@pytest.fixture
def saved(tmp_path):
    def save(model):
        onnx.save(model, tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return save


def open_and_run(path, feeds):
    with open_file(path) as session:
        return session.run(feeds)


# ---- the faults, with the options that ONNX Runtime has by default ----

CRASH = pytest.mark.slow  # a crash costs a process
SCAN = (
    "(float[2,N,3] x) => (float[2,N,3] y) { y = Scan <num_scan_inputs = 1, scan_input_axes = [1], "
    "scan_output_axes = [1], body = b (float[2,3] a) => (float[2,3] c) { c = Neg (a) }> (x) }"
)


@CRASH
@pytest.mark.skipif(RELEASE < (1, 23), reason="since 1.23")
@pytest.mark.parametrize(
    ("nodes", "shape", "weights"),
    [
        ("t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (t, w)", (5, 2, 4), (4, 3)),
        ("t = Transpose <perm = [1, 2, 0]> (x) y = MatMul (t, w)", (5, 2, 4), (5, 3)),
        ("t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (w, t)", (4, 2, 5), (3, 4)),
        ("t = Transpose <perm = [1, 0, 2]> (x) s = Mul (t, k) y = MatMul (s, w)", (5, 2, 4), (4, 3)),
        ("t = Transpose <perm = [1, 0, 2]> (x) v = Transpose (w) y = MatMul (t, v)", (5, 2, 4), (3, 4)),
    ],
    ids=["batch first", "batch last", "weights on the left", "scaled", "weights transposed"],
)
def test_a_transposed_batch_crashes(saved, nodes, shape, weights):
    sizes = ", ".join(map(str, shape))
    scale = {"k": np.array(0.5, F16)} if "k)" in nodes else {}
    model = parse(f"(float16[{sizes}] x) => (float16[a,b,c] y) {{ {nodes} }}", w=array(*weights).astype(F16), **scale)
    with pytest.raises(RuntimeCrash, match="SIGSEGV"), open_file(saved(model)):
        pass


@CRASH
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="threads do not meet on one processor")
def test_threads_that_add_to_one_row_lose_sums():
    model = parse(
        "(float[1,64] x, int64[65536,1] i, float[65536,64] u) => (float[1,64] y)"
        ' { y = ScatterND <reduction = "add"> (x, i, u) }'
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((1, 64), np.float32), "i": np.zeros((65536, 1), np.int64), "u": np.ones((65536, 64), "f")}
    assert any((session.run(None, feeds)[0] != 65536).any() for _ in range(200))


@CRASH
def test_nothing_to_scan_crashes(saved):
    with pytest.raises(RuntimeCrash, match="SIGFPE"):
        open_and_run(saved(parse(SCAN)), {"x": np.zeros((2, 0, 3), np.float32)})


@CRASH
def test_the_smallest_integer_crashes(saved):
    model = parse("(int64[1] x, int64[1] y) => (int64[1] z) { z = Div (x, y) }")
    with pytest.raises(RuntimeCrash, match="SIGFPE"):
        open_and_run(saved(model), {"x": np.array([np.iinfo(np.int64).min]), "y": np.array([-1])})


def test_the_reciprocal_of_a_removed_node_is_refused(saved):
    model = parse(
        "(float[2] x, float[2] b) => (float[2] y) { i = Identity (x) q = Div (one, b) y = Mul (i, q) }",
        one=np.float32(1),
    )
    feeds = {"x": np.ones(2, np.float32), "b": np.full(2, 4, np.float32)}
    with pytest.raises(ORT_ERRORS, match="Node input 'i'"):
        open_and_run(saved(model), feeds)
    with open_program(model) as session:
        assert session.run(feeds)[0].tolist() == [0.25, 0.25]


def test_statistics_are_written_over_constants(saved):
    model = parse(
        "(float[4,2] x) => (float[4,2] y, float16[2] m, float16[2] v) { y, rm, rv = BatchNormalization "
        "<training_mode = 1> (x, s, b, m0, v0) m = Cast <to = 10> (rm) v = Cast <to = 10> (rv) }",
        s=np.ones(2, np.float32),
        b=np.zeros(2, np.float32),
        m0=np.zeros(2, np.float32),
        v0=np.ones(2, np.float32),
    )
    x = np.arange(8, dtype=np.float32).reshape(4, 2) ** 2
    wanted = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    path = saved(model)
    session = onnxruntime.InferenceSession(path)
    first, again = (session.run(None, {"x": x}) for _ in range(2))
    assert np.abs(first[0] - wanted).max() > 0.5
    assert not np.array_equal(first[1], again[1])


def test_a_normalisation_is_fused_from_pow_and_not_from_mul(tmp_path):
    text = (
        "(float[2,4] x) => (float[2,4] y) {{ q = {square} m = ReduceMean <axes = [-1]> (q) v = Add (m, e) "
        "d = Sqrt (v) n = Div (x, d) y = Mul (n, g) }}"
    )
    operators = {}
    for square in ("Pow (x, two)", "Mul (x, x)"):
        two = {"two": np.float32(2)} if "two" in square else {}
        model = parse(text.format(square=square), opset=17, e=np.float32(0.1), g=array(4), **two)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(tmp_path / "optimized.onnx")
        operators[square] = "SimplifiedLayerNormalization" in {node.op_type for node in optimized.graph.node}
    assert operators == {"Pow (x, two)": True, "Mul (x, x)": False}


@pytest.mark.slow
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_cast_of_a_transposed_batch_is_refused_on_cuda(tmp_path, low):
    cast = f"Cast <to = {onnx.TensorProto.DataType.Value(LOW_NAMES[low])}>"
    orders = {
        "cast last": f"t = Transpose <perm = [1, 0, 2]> (x) o = {cast} (t)",
        "cast first": f"c = {cast} (x) o = Transpose <perm = [1, 0, 2]> (c)",
    }
    paths = [tmp_path / f"{order}.onnx" for order in orders]
    for path, nodes in zip(paths, orders.values(), strict=True):
        text = f"(float[5,2,4] x) => (float[2,5,3] y) {{ {nodes} p = MatMul (o, w) y = Cast <to = 1> (p) }}"
        onnx.save(parse(text, w=array(4, 3).astype(NUMPY[low])), path)
    command = [sys.executable, TESTS.parent / "lab/placement.py", "--json", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == CANNOT_TELL:
        pytest.skip(f"placement: {done.stderr.strip()}")
    refused, taken = json.loads(done.stdout).values()
    assert "Cast(-1)" in refused["error"]
    assert taken["cuda"]["MatMul"] == 1


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_a_scatter_in_float16_fails_when_it_runs(saved, op):
    index = "[2,1] i" if op == "ScatterND" else "[2,3] i"
    values = f"(float16[4,3] x, int64{index}, float16[2,3] u) => (float16[4,3] y)"
    model = parse(f'{values} {{ y = {op} <reduction = "add"> (x, i, u) }}')
    shape = (2, 1) if op == "ScatterND" else (2, 3)
    feeds = {"x": np.ones((4, 3), F16), "i": np.ones(shape, np.int64), "u": np.ones((2, 3), F16)}
    with open_file(saved(model)) as session, pytest.raises(ORT_ERRORS, match="MLFloat16"):
        session.run(feeds)


def test_a_transposed_matrix_times_a_vector_is_wrong(saved):
    model = parse(
        "(float[16,16] x, float[16] v) => (float[16] y) { t = Transpose <perm = [1, 0]> (x) y = MatMul (t, v) }"
    )
    feeds = {"x": array(16, 16), "v": array(16, seed=1)}
    (product,) = open_and_run(saved(model), feeds)
    np.testing.assert_allclose(product, feeds["x"] @ feeds["v"], rtol=1e-4, atol=1e-5)  # as if there was no Transpose
    with open_program(model) as session:
        np.testing.assert_allclose(session.run(feeds)[0], feeds["x"].T @ feeds["v"], rtol=1e-4, atol=1e-5)


# ---- the table ----


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_guards_and_tests_exist(fault):
    for guard in fault.guards:
        module, _, name = guard.rpartition(".")
        try:
            owner = importlib.import_module(f"amp_transpiler.{module}")
        except ModuleNotFoundError:  # a method
            module, _, kind = module.rpartition(".")
            owner = getattr(importlib.import_module(f"amp_transpiler.{module}"), kind)
        assert hasattr(owner, name), guard
    file, _, test = fault.test.partition("::")
    functions = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert test in functions


def test_every_reproduction_here_has_a_row():
    here = {fault.test.partition("::")[2] for fault in FAULTS if fault.test.startswith("runtime/test_faults.py")}
    written = {name for name in globals() if name.startswith("test_")}
    assert written - here == {
        "test_guards_and_tests_exist",
        "test_every_reproduction_here_has_a_row",
        "test_the_page_shows_the_table",
    }


def test_the_page_shows_the_table():
    """Renew it with what `table()` returns."""
    assert table() in (TESTS.parent / "docs" / "onnxruntime_faults.md").read_text(encoding="utf-8")
