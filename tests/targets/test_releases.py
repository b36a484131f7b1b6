"""Tables of the releases of ONNX Runtime, and the choice of one."""

import subprocess
import sys

import onnx.parser
import onnxruntime
import pytest

import amp_transpiler
from amp_transpiler.errors import ModelError, OptionError
from amp_transpiler.ops.limits import NEWEST_IR, NEWEST_OPSET
from amp_transpiler.report.wording import target_words
from amp_transpiler.targets import TARGETS, find_target, releases
from amp_transpiler.targets.operator import Operator
from amp_transpiler.targets.releases import choose_release, installed_version, known_releases, load_release

NAMES = tuple(f"1.{minor}" for minor in range(17, 32))
LIMITS = {"1.17": (20, 9), "1.18": (21, 10), "1.20": (21, 10), "1.22": (22, 10), "1.23": (23, 11), "1.31": (26, 13)}


def operator(op_type, opset, dtype, inputs=1, domain=""):
    types = (f"tensor({dtype})",)
    return Operator(domain, op_type, ((domain, opset),), types * inputs, types)


def test_every_minor_release_has_a_table():
    assert known_releases() == NAMES
    assert {name: (load_release(name).newest_opset, load_release(name).newest_ir) for name in LIMITS} == LIMITS
    assert max(load_release(name).newest_opset for name in NAMES) == NEWEST_OPSET
    assert max(load_release(name).newest_ir for name in NAMES) == NEWEST_IR


@pytest.mark.parametrize(
    ("op", "inputs", "opset", "dtype", "first", "last"),  # the releases whose CUDA provider takes it
    [
        ("Conv", 2, 21, "float16", "1.18", "1.31"),
        ("Conv", 2, 22, "float16", "1.24", "1.31"),  # open-ended at 11 before, while 1.21 has the schema of 22 already
        ("Conv", 2, 22, "bfloat16", "1.24", "1.31"),
        ("MaxPool", 1, 12, "float16", "1.17", "1.31"),
        ("MaxPool", 1, 22, "float16", None, None),
        ("RMSNormalization", 2, 23, "float16", "1.23", "1.31"),
        ("Relu", 1, 14, "bfloat16", "1.17", "1.31"),
        ("Tan", 1, 14, "float16", None, None),
    ],
)
def test_kernels_by_release(op, inputs, opset, dtype, first, last):
    asked = operator(op, opset, dtype, inputs)
    with_opset = [name for name in NAMES if opset <= load_release(name).newest_opset]
    with_opset = [name for name in with_opset if find_target("cuda", name).has_kernel(asked)]
    assert with_opset == [name for name in NAMES if first is not None and first <= name <= last]


@pytest.mark.parametrize(
    ("op", "opset", "dtype", "inputs", "refused"),  # sessions of these releases were refused, of the others not
    [
        ("LayerNormalization", 17, "bfloat16", 2, NAMES[:7]),
        ("LayerNormalization", 17, "float16", 2, ()),
        ("Sigmoid", 13, "bfloat16", 1, NAMES[:6]),
        ("Sigmoid", 13, "float16", 1, ()),
    ],
)
def test_operators_that_a_fusion_of_some_releases_cannot_bear(op, opset, dtype, inputs, refused):
    asked = operator(op, opset, dtype, inputs)
    assert tuple(name for name in NAMES if not find_target("cuda", name).has_kernel(asked)) == refused
    # ONNX defines the norm as a function, too: it is not written out where a kernel is registered.
    assert tuple(name for name in NAMES if not find_target("cuda", name).runs(asked)) == refused


QUANTIZED = """<ir_version: 9, opset_import: ["": 19]>
g (float[4,4] x) => (float[4,4] y) <float s = {0.5}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    y = MatMul(d, d)
}"""


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize(("ort", "low"), [("1.18", True), ("1.19", False), ("1.20", False), ("1.21", True)])
def test_quantization_stays_float32_where_the_optimizer_cannot_read_float16_scales(ort, low, target):
    model = onnx.parser.parse_model(QUANTIZED)
    report = amp_transpiler.transpile(model, level="O2", ort=ort, target=target, verify=False)
    decided = {row.op: row.precision for row in report.decisions}
    assert (decided["DequantizeLinear"] == "low") is low


NORM = """<ir_version: 8, opset_import: ["": 17]> g (float[2,4,8] x, float[2,4,8] r) => (float[2,4,8] y)
<float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}, float two = {2}, float eps = {0.00001}> {
    a = Add(x, r)
    m = ReduceMean<axes=[-1]>(a)
    d = Sub(a, m)
    p = Pow(d, two)
    v = ReduceMean<axes=[-1]>(p)
    e = Add(v, eps)
    q = Sqrt(e)
    n = Div(d, q)
    y = Mul(n, s)
}"""


@pytest.mark.parametrize(
    ("ort", "dtype", "squares"), [("1.23", "bfloat16", 0), ("1.24", "bfloat16", 1), ("1.23", "float16", 1)]
)
def test_a_norm_written_out_is_not_recognised_where_its_fusion_is_refused(ort, dtype, squares):
    options = {"level": "O2", "dtype": dtype, "ort": ort, "verify": False, "fuse": "none"}
    report = amp_transpiler.transpile(onnx.parser.parse_model(NORM), **options)
    assert [node.op_type for node in report.program.model.graph].count("Pow") == squares


@pytest.mark.parametrize(
    ("domain", "op", "opset", "versions"),
    [
        ("", "Cast", 21, {"1.17": 19, "1.18": 21, "1.31": 21}),
        ("ai.onnx", "MaxPool", 22, {"1.20": 12, "1.21": 22}),
        ("", "Gelu", 20, {"1.17": 20}),
        ("", "RMSNormalization", 23, {"1.22": None, "1.23": 23}),
        ("", "Upsample", 10, {"1.17": None, "1.31": None}),  # deprecated
        ("", "NoSuchOperator", 20, {"1.31": None}),
    ],
)
def test_schema_versions_by_release(domain, op, opset, versions):
    assert {name: load_release(name).schema_version(domain, op, opset) for name in versions} == versions


@pytest.mark.parametrize(
    ("asked", "version", "note"),
    [
        ("1.20", "1.20", ""),
        ("1.20.1", "1.20", ""),
        ("1.31.0.dev20261101", "1.31", ""),
        (None, ".".join(onnxruntime.__version__.split(".")[:2]), ""),
        ("1.99", "1.31", "ONNX Runtime 1.99 is newer than the kernel tables: those of 1.31 decide"),
        ("2.0.1", "1.31", "ONNX Runtime 2.0 is newer than the kernel tables: those of 1.31 decide"),
    ],
)
def test_choice(asked, version, note):
    choice = choose_release(asked)
    assert (choice.release.version, choice.note) == (version, note)
    assert find_target("cuda", asked).release is choice.release


@pytest.mark.parametrize(
    "asked", ["1.16", "1.2", "1", "", "newest", "1.20 x", "v1.20", 1.2, ["1.20"], "1." + "9" * 500]
)
def test_a_release_without_a_table_is_refused(asked):
    with pytest.raises(OptionError, match=r"no kernel table for ONNX Runtime .*: expected one of 1\.17, .* 1\.31"):
        find_target("cuda", asked)


@pytest.mark.parametrize(
    ("installed", "version", "note"),
    [
        (None, "1.31", ""),
        ("1.20.2", "1.20", ""),
        ("1.33.0", "1.31", "newer than the kernel tables"),
        ("1.15.1", "1.31", "no kernel table for the installed ONNX Runtime 1.15.1: that of 1.31 decides"),
    ],
)
def test_the_installed_release_decides_by_default(installed, version, note, monkeypatch):
    monkeypatch.setattr(releases, "installed_version", lambda: installed)
    choice = choose_release.__wrapped__(None)
    assert choice.release.version == version
    assert note in choice.note


def test_the_installed_version_is_found_without_an_import():
    code = (
        "from amp_transpiler.targets.releases import installed_version; import sys;"
        "print(installed_version(), 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [onnxruntime.__version__, "False"]
    assert installed_version() == onnxruntime.__version__


@pytest.mark.parametrize("name", TARGETS)
def test_a_release_is_that_of_the_fallback_and_the_members_too(name):
    target = find_target(name, "1.18.1")
    assert target is find_target(name, "1.18")
    assert (target.name, target.ort, target.newest_opset, target.newest_ir) == (name, "1.18", 21, 10)
    assert {provider.ort for provider in target.providers} == {"1.18"}
    assert find_target(name) is TARGETS[name]


def test_a_release_loads_quickly():
    code = (
        "import time; from amp_transpiler.targets import find_target; begin = time.process_time();"
        "find_target('cuda', '1.20').newest_opset; print(time.process_time() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3  # 20 ms; wide, for busy machines


MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {
    c = Conv(x, w)
    y = Relu(c)
}"""


@pytest.mark.parametrize(
    ("ort", "target", "dtype", "opset", "ir", "low"),
    [
        (None, "cuda", "float16", 21, 10, 2),
        ("1.17", "cuda", "float16", 20, 9, 2),
        ("1.17", "any", "float16", 20, 9, 2),
        ("1.17", "tensorrt", "float16", 20, 9, 2),
        ("1.23", "cuda", "bfloat16", 21, 10, 1),  # no kernel for Conv in bfloat16
        ("1.24", "cuda", "bfloat16", 22, 10, 2),
    ],
)
def test_a_result_is_for_the_release(ort, target, dtype, opset, ir, low):
    model = onnx.parser.parse_model(MODEL)
    report = amp_transpiler.transpile(model, level="O2", dtype=dtype, target=target, ort=ort, verify=False)
    written = report.program.model
    assert (written.graph.opset_imports[""], written.ir_version, report.low_nodes) == (opset, ir, low)
    if ort is not None:
        assert report.ort == ort
        assert (ort in target_words(report)) == (target != "tensorrt")


def test_the_report_says_if_another_runtime_checked():
    model = onnx.parser.parse_model(MODEL)
    notes = amp_transpiler.transpile(model, ort="1.20", prefer="size").notes
    expected = f"checked with the installed ONNX Runtime {onnxruntime.__version__}; 1.20 was not run"
    assert (expected in notes) == (not onnxruntime.__version__.startswith("1.20."))
    assert not [note for note in amp_transpiler.transpile(model, prefer="size").notes if "checked with" in note]


def test_an_operator_newer_than_the_release_is_an_error_that_names_it():
    text = """<ir_version: 11, opset_import: ["": 24]> g (float[1,2,4,8] p, float[1,2,1,8] u) => (float[1,2,4,8] y) {
        y = TensorScatter(p, u) }"""
    with pytest.raises(
        ModelError, match=r"newer than opset 20, which ONNX Runtime 1\.17 does not know yet.*TensorScatter"
    ):
        amp_transpiler.transpile(onnx.parser.parse_model(text), ort="1.17", verify=False)


def test_an_operator_newer_than_the_release_is_written_out_by_its_definition():
    text = """<ir_version: 11, opset_import: ["": 23]> g (float[1,2,4,8] q, float[1,4,4] c) => (float[1,2,4,8] y) {
        y = RotaryEmbedding(q, c, c) }"""
    report = amp_transpiler.transpile(onnx.parser.parse_model(text), ort="1.17", verify=False)
    assert report.opset == (23, 20)
    assert "newer than opset 20, so written out by definition: RotaryEmbedding" in report.notes


def test_an_opset_that_only_widens_is_declared_lower():
    model = onnx.parser.parse_model(MODEL.replace('"": 21', '"": 22'))
    report = amp_transpiler.transpile(model, ort="1.17", verify=False, prefer="size")
    assert (report.opset, report.program.model.ir_version) == ((22, 20), 9)
