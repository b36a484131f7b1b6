"""Helpers of tests: models from ONNX text, runs that do not go through the package, queries on a program."""

import hashlib

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from packaging.version import Version

import amp_transpiler as amp
from amp_transpiler.report.precision import kind_of
from amp_transpiler.targets import Target

LOW_NAMES = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
LIMITS = {"float16": 0.02, "bfloat16": 0.05}
ORT_ERROR = "onnxruntime.capi.onnxruntime_pybind11_state"
NEEDS_ONNX = "needs onnx "  # so begins the reason of every test that is skipped for the installed onnx


def needs_onnx(version, reason):
    """Skip a test, or a row of one, where the installed onnx is older than `version`."""
    old = Version(onnx.__version__) < Version(version)
    return pytest.mark.skipif(old, reason=f"{NEEDS_ONNX}{version} ({onnx.__version__} is installed): {reason}")


HAS_SWIGLU = needs_onnx("1.23", "a table has a row for SwiGLU of opset 28")


# ---- making models ----


def array(*shape, seed=0, scale=1.0, low=None):
    """Normally distributed float32 numbers; uniform ones from `low` up to `scale` where `low` is given."""
    random = np.random.default_rng([seed, *shape])
    values = random.normal(0.0, scale, shape) if low is None else random.uniform(low, scale, shape)
    return values.astype(np.float32)


def parse(graph, *functions, opset=18, ir_version=10, imports="", **weights):
    """Return the model that ONNX text describes; `weights` become initializers of the main graph."""
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}{imports}]>'
    model = onnx.parser.parse_model(f"{header} agraph {graph}" + "".join(f" {f}" for f in functions))
    for name, values in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values), name))
    return model


def chain(*calls, opset=18, shape="float[2,4]", **weights):
    """Return the model `x -> call -> ... -> y`, where `{}` in a call stands for the result before it."""
    names = ["x", *(f"v{i}" for i in range(1, len(calls))), "y"]
    body = " ".join(f"[{to}] {to} = {call.format(of)}" for call, of, to in zip(calls, names, names[1:], strict=False))
    return parse(f"({shape} x) => ({shape} y) {{ {body} }}", opset=opset, **weights)


# ---- running ----


def open_ort(model, *, optimized=False):
    """Open a session on ONNX Runtime's CPU provider, past this package."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model, feeds, *, optimized=False):
    """Run a `ModelProto` or `Program` as it is, and return its outputs by name."""
    proto = model if isinstance(model, onnx.ModelProto) else model.to_onnx()
    session = open_ort(proto, optimized=optimized)
    names = [info.name for info in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def run_on_noise(model):
    """Run an `ir.Model` of float32 inputs with known sizes on normally distributed numbers; return its first output."""
    rng = np.random.default_rng(0)
    shapes = {value.name: [int(size) for size in value.shape] for value in model.graph.inputs}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return amp.Session(model, amp.CPUPlace()).run(feeds)[0]


def run_emulated(program, feeds, *, optimized=False):
    """Run a low program with its roundings, and return its outputs by name."""
    return run(amp.emulate(program), feeds, optimized=optimized)


def assert_valid(program):
    """Assert that ONNX's checker accepts a program in full and that ONNX Runtime loads it, itself or emulated.

    ONNX Runtime's CPU provider has few bfloat16 kernels: there, and there only, the emulated program stands for it.
    """
    proto = program if isinstance(program, onnx.ModelProto) else program.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version <= 13
    assert all(entry.version <= 26 for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    try:
        open_ort(proto)
    except Exception as error:
        if type(error).__module__ != ORT_ERROR or "NOT_IMPLEMENTED" not in str(error):
            raise
        open_ort(amp.emulate(program).to_onnx())


def relative(expected, result):
    """Norm of the difference over the norm of what is expected, where that is finite; both must be finite there."""
    expected, result = np.asarray(expected), np.asarray(result)
    assert expected.shape == result.shape
    if expected.dtype.kind not in "fV":
        return float((expected != result).any())
    expected, result = expected.astype(np.float64), result.astype(np.float64)
    finite = np.isfinite(expected)
    assert np.isfinite(result[finite]).all(), "finite in float32 but not in low precision"
    assert np.array_equal(expected[~finite], result[~finite], equal_nan=True)
    norm = np.linalg.norm(expected[finite])
    difference = np.linalg.norm(result[finite] - expected[finite])
    return float(difference / norm) if norm else float(difference)


def assert_close(expected, found, limit):
    """Assert that outputs by name agree within a relative norm, integers and booleans exactly."""
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        left, right = (value, found[name]) if isinstance(value, list) else ([value], [found[name]])
        assert len(left) == len(right), name
        for element, other in zip(left, right, strict=True):
            assert relative(element, other) <= limit, name


def convert(model, feeds, level="O2", dtype="float16", limit=None, **options):
    """Convert `model` in memory, assert that the result is valid and close to fp32 on `feeds`, and return the
    report."""
    before = model.SerializeToString(deterministic=True)
    report = amp.transpile(model, level=level, dtype=dtype, inputs=dict(feeds), **options, prefer="size")
    assert model.SerializeToString(deterministic=True) == before, "the source was changed"
    assert_valid(report.program)
    assert_close(run(model, feeds), run_emulated(report.program, feeds), LIMITS[dtype] if limit is None else limit)
    return report


# ---- asking ----


def nodes(program, op_type=None):
    """List the nodes of every scope, or those of one operator."""
    model = amp.load(program).model
    return [node for node in model.graph.all_nodes() if op_type is None or node.op_type == op_type]


def casts(program):
    """List every Cast as `(input, type of the input, type it casts to)`, of every scope."""
    return [
        (node.inputs[0].name, node.inputs[0].dtype.name, node.outputs[0].dtype.name) for node in nodes(program, "Cast")
    ]


def dtype_of(program, name):
    """The element type of the value `name`, in whatever scope it is first found."""
    model = amp.load(program).model
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        values += node.outputs
        values += [value for value in node.inputs if value is not None]
    return next(value.dtype.name for value in values if value.name == name)


def dtypes(program, op_type):
    """Element types of the first output of every node of one operator."""
    return [node.outputs[0].dtype.name for node in nodes(program, op_type)]


def constant(program, name):
    """The array behind an initializer, or behind the Constant node that makes `name`."""
    model = amp.load(program).model
    for graph in model.graphs():
        if name in graph.initializers:
            return graph.initializers[name].const_value.numpy()
    node = next(n for n in model.graph.all_nodes() if n.op_type == "Constant" and n.outputs[0].name == name)
    return node.attributes["value"].as_tensor().numpy()


def decisions(report):
    """Node name -> `low`, `high` or `untouched`, as decisions call them."""
    return {row.name: kind_of(row.precision) for row in report.decisions}


def reasons(report):
    """Node name -> reason."""
    return {row.name: row.reason for row in report.decisions}


def folder_hash(folder):
    """Relative path -> digest of everything in a folder, hidden files included."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def doubling_matmul(dtype: type) -> onnx.ModelProto:
    """Return a model that multiplies rows of 64 elements by twice the identity, in `dtype`."""
    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=dtype) * 2, "w")
    kind = weight.data_type
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, ["N", 64])],
        [onnx.helper.make_tensor_value_info("y", kind, ["N", 64])],
        [weight],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


class Knows(Target):
    """A target with kernels for some operators in every type, and for some in float32 alone."""

    name, newest_opset, operators, float32_alone = "knows", 26, (), ()

    def has_kernel(self, operator):
        if operator.op_type in self.float32_alone:
            return "tensor(float16)" not in operator.inputs
        return operator.op_type in self.operators
