"""What TensorRT's builder refuses in 16 bits: each row of the table, asked of the builder where it is installed."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import onnx.shape_inference
import pytest

import amp_transpiler as amp
from amp_transpiler.files.saving import save
from amp_transpiler.targets import TENSORRT, TENSORRT_RTX
from amp_transpiler.targets.tensorrt import refusals
from amp_transpiler.verification import engine_check
from amp_transpiler.verification.engine_check import profile_of
from tests.support import array, parse
from tests.tensorrt import needs_builder

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGE, ROWS, SERIES = "float[1,4,8,8] x", "float[2,6,16] x", "float[6,2,16] x"
GRU = {"w": array(1, 24, 16, scale=0.1), "r": array(1, 24, 8, scale=0.1), "b": array(1, 48, scale=0.1)}
LSTM = {"w": array(1, 32, 16, scale=0.1), "r": array(1, 32, 8, scale=0.1), "b": array(1, 64, scale=0.1)}
RNN = {"w": array(1, 8, 16, scale=0.1), "r": array(1, 8, 8, scale=0.1), "b": array(1, 16, scale=0.1)}
LENGTHS = {"n": np.array([6, 3], np.int32)}

# operator and condition of a row -> inputs, nodes, constants
CASES = {
    ("ConvTranspose", ""): (IMAGE, "y = ConvTranspose <strides = [2, 2]> (x, w)", {"w": array(4, 4, 2, 2)}),
    ("GRU", ""): (SERIES, "y = GRU <hidden_size = 8> (x, w, r, b)", GRU),
    ("GRU", "sequence lengths"): (SERIES, "y = GRU <hidden_size = 8> (x, w, r, b, n)", GRU | LENGTHS),
    ("HardSwish", ""): (ROWS, "y = HardSwish (x)", {}),
    ("LSTM", "sequence lengths"): (SERIES, "y = LSTM <hidden_size = 8> (x, w, r, b, n)", LSTM | LENGTHS),
    ("LpNormalization", ""): (ROWS, "y = LpNormalization (x)", {}),
    ("LpPool", ""): (IMAGE, "y = LpPool <kernel_shape = [2, 2]> (x)", {}),
    ("Mish", ""): (ROWS, "y = Mish (x)", {}),
    ("RandomNormal", ""): (ROWS, "r = RandomNormal <shape = [6, 16]> () c = CastLike (r, x) y = Add (x, c)", {}),
    ("RandomNormalLike", ""): (ROWS, "r = RandomNormalLike (x) y = Add (x, r)", {}),
    ("RandomUniform", ""): (ROWS, "r = RandomUniform <shape = [6, 16]> () c = CastLike (r, x) y = Add (x, c)", {}),
    ("RandomUniformLike", ""): (ROWS, "r = RandomUniformLike (x) y = Add (x, r)", {}),
    ("RNN", "sequence lengths"): (SERIES, "y = RNN <hidden_size = 8> (x, w, r, b, n)", RNN | LENGTHS),
}
RUNS = [(row, dtype) for row in refusals() for dtype in row.formats]
IDS = [f"{row.operator}, {row.condition or 'all'}, {dtype}" for row, dtype in RUNS]


def built(row, dtype="float32"):
    """Return a model with a node that a row is about, in a format, with a sample."""
    declared, nodes, constants = CASES[row.operator, row.condition]
    type_ = {"float32": "float"}.get(dtype, dtype)
    code = onnx.TensorProto.DataType.Value(type_.upper())
    numpy_type = onnx.helper.tensor_dtype_to_np_dtype(code)
    weights = {
        name: value.astype(numpy_type) if value.dtype.kind == "f" else value for name, value in constants.items()
    }
    # Without an input that tells its type, a random operator has an attribute: 10 is float16, 16 bfloat16.
    nodes = nodes.replace("<shape", f"<dtype = {code}, shape")
    text = f"({declared}) => (float[] y) {{ {nodes} }}".replace("float[", f"{type_}[")
    model = parse(text, opset=22, **weights)
    model = onnx.shape_inference.infer_shapes(model)
    shape = [int(size) for size in re.findall(r"\d+", declared)]
    return model, {"x": np.abs(array(*shape)).astype(numpy_type)}


@pytest.mark.parametrize("target", [TENSORRT, TENSORRT_RTX], ids=lambda target: target.name)
@pytest.mark.parametrize(("row", "dtype"), RUNS, ids=IDS)
def test_what_is_refused_stays_float32(row, dtype, target):
    model, _ = built(row)
    report = amp.transpile(model, level="O2", target=target.name, dtype=dtype, verify=False)
    decisions = [decision for decision in report.decisions if decision.op == row.operator]
    assert [decision.precision for decision in decisions] == ["float32"]
    assert row.operator in report.missing_kernels


@pytest.mark.parametrize("row", refusals(), ids=lambda row: f"{row.operator}, {row.condition or 'all'}")
def test_a_row_says_who_and_why(row):
    assert re.fullmatch(r"TensorRT(-RTX)? [\d.]+", row.builder)
    assert row.says


def test_the_page_has_each_row():
    page = (ROOT / "docs" / "howto" / "tensorrt.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (all|with `sequence_lens`) \| ([^|]+) \|$", page, re.MULTILINE)
    words = {"": "all", "sequence lengths": "with `sequence_lens`"}
    formats = [row.formats[0] if len(row.formats) == 1 else "both" for row in refusals()]
    table = [
        (row.operator, name, words[row.condition], row.builder) for row, name in zip(refusals(), formats, strict=True)
    ]
    assert rows == table


def test_other_nodes_of_such_operators_become_low():
    model, _ = built(next(row for row in refusals() if (row.operator, row.condition) == ("GRU", "")))
    report = amp.transpile(model, level="O2", target="tensorrt", verify=False)
    assert [decision.precision for decision in report.decisions if decision.op == "GRU"] == ["float16"]


def test_other_targets_know_nothing_of_it():
    model, _ = built(next(row for row in refusals() if row.operator == "HardSwish"))
    report = amp.transpile(model, level="O2", target="cuda", dtype="bfloat16", verify=False, prefer="low")
    assert [decision.precision for decision in report.decisions if decision.op == "HardSwish"] == ["bfloat16"]


@pytest.mark.parametrize(("dtype", "opset"), [("float16", 13), ("bfloat16", 15)])
def test_a_power_is_low_where_its_exponent_can_be(tmp_path, dtype, opset):
    """The parser casts the base of a float32 exponent to float32; Pow takes bfloat16 exponents from opset 15 on."""
    model = parse(f"({ROWS}) => ({ROWS[:-1]}y) {{ y = Pow (x, e) }}", opset=13, e=np.float32(1.5))
    out = tmp_path / "out.onnx"
    report = amp.transpile(model, out, level="O2", target="tensorrt", dtype=dtype, verify=False, build="no")
    assert [decision.precision for decision in report.decisions if decision.op == "Pow"] == [dtype]
    converted = onnx.load(out)
    assert converted.opset_import[0].version == opset
    power = next(node for node in converted.graph.node if node.op_type == "Pow")
    types = {value.name: value.data_type for value in converted.graph.initializer}
    assert types[power.input[1]] == onnx.TensorProto.DataType.Value(dtype.upper())


@needs_builder
@pytest.mark.parametrize(("row", "dtype"), RUNS, ids=IDS)
def test_the_builder_refuses_it_in_16_bits_only(tmp_path, row, dtype):
    model, sample = built(row)
    save(amp.load(model), tmp_path / "high.onnx")
    assert not engine_check._built(tmp_path / "high.onnx", profile_of([sample])).fault
    model, sample = built(row, dtype)
    save(amp.load(model), tmp_path / "low.onnx")
    engine = engine_check._built(tmp_path / "low.onnx", profile_of([sample]))
    assert row.says in engine.fault, f"{engine.builder} takes it now: drop the row"


@needs_builder
@pytest.mark.parametrize(("row", "dtype"), RUNS, ids=IDS)
def test_a_conversion_of_it_is_built(tmp_path, row, dtype):
    model, sample = built(row)
    options = {"target": "tensorrt", "dtype": dtype, "build": "yes", "inputs": sample, "cache": False}
    report = amp.transpile(model, tmp_path / "out.onnx", **options)
    assert not report.engine.fault


# ---- a sequence that was cast ----

RECURRENT = {
    "GRU": ("GRU <hidden_size = 8> (s, w, r, b)", GRU),
    "LSTM": ("LSTM <hidden_size = 8> (s, w, r, b)", LSTM),
    "RNN": ("RNN <hidden_size = 8> (s, w, r, b)", RNN),
}
BEFORE = {
    "straight": ("[made] s = MatMul (x, m)", {"made"}),
    "transposed": ("[made] t = MatMul (x, m) [moved] s = Transpose <perm = [1, 0, 2]> (t)", {"made", "moved"}),
    "of two": ("[first] a = MatMul (x, m) [made] s = Tanh (a)", {"made"}),
    "another recurrent node": (
        "[made] h = GRU <hidden_size = 16> (x, v, q) [moved] s = Squeeze (h, one)",
        {"made", "moved"},
    ),
}


def sequence(kind, before, dtype="float"):
    """Return a model with a recurrent node behind others, with a sample."""
    call, weights = RECURRENT[kind]
    further = {"m": array(16, 16, scale=0.1), "v": array(1, 48, 16, scale=0.1), "q": array(1, 48, 16, scale=0.1)}
    constants = {**weights, **further, "one": np.array([1], np.int64)}
    text = f"({dtype}[6,2,16] x) => ({dtype}[] y) {{ {before} [last] y = {call} }}"
    used = {name: value for name, value in constants.items() if re.search(rf"\b{name}[,)]", text)}
    return onnx.shape_inference.infer_shapes(parse(text, opset=18, **used)), {"x": array(6, 2, 16)}


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("name", BEFORE)
def test_what_a_float32_recurrence_reads_stays_float32(name, kind, level):
    before, high = BEFORE[name]
    model, _ = sequence(kind, before)
    options = {"level": level, "disable_amp": "^last$", "verify": False}
    report = amp.transpile(model, target="tensorrt", **options)
    precisions = {row.name: row.precision for row in report.decisions}
    assert {name for name in precisions if precisions[name] == "float32"} == high | {"last"}
    assert any("reads it" in row.reason for row in report.decisions)
    other = amp.transpile(model, target="cuda", prefer="low", **options)
    assert not any("reads it" in row.reason for row in other.decisions)


def test_nothing_is_held_where_the_recurrence_is_low():
    model, _ = sequence("GRU", BEFORE["straight"][0])
    report = amp.transpile(model, target="tensorrt", verify=False)
    assert {row.precision for row in report.decisions} <= {"float16", "unchanged"}


@needs_builder
@pytest.mark.parametrize("kind", RECURRENT)
def test_the_builder_refuses_a_sequence_that_was_cast(tmp_path, kind):
    model, sample = sequence(kind, "a = Cast <to = 10> (x) s = Cast <to = 1> (a)")
    onnx.save(model, tmp_path / "cast.onnx")
    engine = engine_check._built(tmp_path / "cast.onnx", profile_of([sample]))
    assert "shape inference" in engine.fault, f"{engine.builder} takes it now: drop precision/before_recurrences.py"


@needs_builder
@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_float32_recurrence_is_built(tmp_path, kind, name):
    model, sample = sequence(kind, BEFORE[name][0])
    options = {"target": "tensorrt", "disable_amp": "^last$", "level": "O2", "build": "yes", "inputs": sample}
    assert not amp.transpile(model, tmp_path / "out.onnx", cache=False, **options).engine.fault


@pytest.mark.parametrize("level", ["auto", "O2"])
def test_a_spectrum_is_a_product_that_pays_for_its_casts(level):
    """The nodes before and after the spectrum stay float32, so that only it decides."""
    text = """(float[1,64] x) => (float[1,4,9,2] y) <int64 step = {16}, int64 width = {16}> {
        [before] a = Exp (x) [spectrum] s = STFT (a, step, w, width) [after] y = Exp (s) }"""
    report = amp.transpile(
        parse(text, w=array(16)), None, level=level, target="tensorrt", build="no", disable_amp="before|after"
    )
    assert {row.name: row.precision for row in report.decisions}["spectrum"] == "float16"


LISTED = {"tensorrt": ({"x"}, "float16"), "tensorrt-rtx": ({"x"}, "float16"), "cuda": ({"x", "w"}, "float32")}


@pytest.mark.parametrize(("target", "expected"), LISTED.items(), ids=LISTED)
def test_initializers_that_are_inputs_are_weights_of_an_engine(target, expected):
    """From IR version 4 on callers of ONNX Runtime may override them, but nobody can in an engine."""
    model = parse("(float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", w=array(8, 8))
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 8]))
    report = amp.transpile(model, level="O2", target=target, verify=False, build="no")
    graph = report.program.to_onnx().graph
    types = {tensor.name: onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name for tensor in graph.initializer}
    inputs, stored = expected
    assert {value.name for value in graph.input} == inputs
    assert set(types.values()) == {stored}
    assert any("TensorRT reads all as weights" in note for note in report.notes) is (inputs == {"x"})
