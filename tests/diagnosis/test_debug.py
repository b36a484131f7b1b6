"""`amp.debug`: the guilty node of conversions and of other tools' models, the mended model, and what is refused."""

import importlib
import importlib.util
import pathlib
import warnings

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.child import Child, RuntimeCrash
from amp_transpiler.errors import CheckFailed, InputError, OptionError
from tests.diagnosis.programs import WEIGHTS, converted, model_of, renamed
from tests.support import array, parse, relative, run, run_emulated

NARROW = "(float[2,4] x) => (float[2,4] y)"
# The squares of `big` are beyond float16; the norm behind them makes them small again.
OVERFLOWING = parse(
    NARROW
    + """ { [up] h = MatMul (x, big) [square] s = Mul (h, h) [norm] n = LayerNormalization (s, g, b)
    [head] y = MatMul (n, w) }""",
    big=300.0 * array(4, 4, low=0.5),
    g=1.0 + array(4, seed=2, scale=0.1),
    b=array(4, seed=3, scale=0.1),
    w=array(4, 4),
)
QUIET = parse(NARROW + " { [up] h = MatMul (x, w) [act] y = Sigmoid (h) }", w=array(4, 4))
SAMPLES = {"x": array(2, 4, low=0.5, seed=5)}


def debug(model, low=None, **options):
    return amp.debug(model, low, **{"inputs": SAMPLES, **options})


def test_without_a_low_model_the_float32_one_is_converted():
    diagnosis = debug(OVERFLOWING)
    assert (diagnosis.guilty.node, diagnosis.guilty.op, diagnosis.guilty.fault) == ("square", "Mul", "overflow")
    assert diagnosis.excess > 1.0
    assert (diagnosis.low, diagnosis.dtype, diagnosis.samples, diagnosis.given) == (None, "float16", 1, True)
    assert (diagnosis.path[0], diagnosis.path[-1]) == ("square", "head")
    assert [row.node for row in diagnosis.nodes] == ["up", "square", "norm", "head"]
    assert diagnosis.unmatched == ()
    assert "square" in diagnosis.cure.nodes
    assert diagnosis.cure.excess <= 1.0


def test_what_is_fine_has_no_guilty_node():
    diagnosis = debug(QUIET)
    assert (diagnosis.guilty, diagnosis.cure, diagnosis.path) == (None, None, ())
    assert diagnosis.excess <= 1.0
    assert {row.fault for row in diagnosis.nodes} <= {None, "rounding"}


def test_the_error_is_that_of_the_outputs():
    feeds = SAMPLES
    low = converted(QUIET)
    expected = relative(run(QUIET, feeds)["y"], run_emulated(low, feeds)["y"])
    assert debug(QUIET, low).error == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("change", [lambda model: model, renamed])
def test_a_low_model_of_another_tool(change):
    low = change(converted(OVERFLOWING))
    diagnosis = debug(OVERFLOWING, low)
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("square", "overflow")
    assert diagnosis.unmatched == ()
    assert diagnosis.low == "the low model"


def by_onnxconverter(model):
    from onnxconverter_common.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def by_runtime(model):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


TOOLS = {"onnxconverter_common": by_onnxconverter, "onnxruntime.transformers": by_runtime}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_low_model_of_a_real_tool(tool):
    if importlib.util.find_spec(tool.partition(".")[0]) is None:
        pytest.skip(f"{tool} is not installed")
    copy = onnx.ModelProto()
    copy.CopyFrom(OVERFLOWING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low = TOOLS[tool](copy)
    diagnosis = debug(OVERFLOWING, low)
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("square", "overflow")
    assert diagnosis.unmatched == ()


def test_a_low_model_in_bfloat16_is_seen_as_such():
    diagnosis = debug(OVERFLOWING, converted(OVERFLOWING, "bfloat16"), tolerance=0.2)
    assert diagnosis.dtype == "bfloat16"
    assert diagnosis.guilty is None


def test_the_mended_model_and_its_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(OVERFLOWING, "model.onnx")
    np.savez("samples.npz", **SAMPLES)
    diagnosis = amp.debug("model.onnx", inputs="samples.npz", fix="mended.onnx", cure=False)
    assert diagnosis.cure.written == "mended.onnx"
    assert amp.debug("model.onnx", "mended.onnx", inputs="samples.npz").guilty is None
    mended = pathlib.Path("mended.onnx").read_bytes()
    amp.transpile("model.onnx", "again.onnx", recipe="mended.recipe.toml", inputs="samples.npz")
    assert pathlib.Path("again.onnx").read_bytes() == mended


def test_nothing_is_written_where_nothing_is_to_be_mended(tmp_path):
    assert debug(QUIET, fix=tmp_path / "mended.onnx").cure is None
    assert list(tmp_path.iterdir()) == []


def test_models_stay_as_they_are():
    low = converted(OVERFLOWING)
    before = [model.SerializeToString(deterministic=True) for model in (OVERFLOWING, low)]
    debug(OVERFLOWING, low)
    assert [model.SerializeToString(deterministic=True) for model in (OVERFLOWING, low)] == before


def test_the_same_twice():
    assert debug(OVERFLOWING) == debug(OVERFLOWING)


def test_made_up_inputs():
    diagnosis = amp.debug(QUIET, cure=False)
    assert (diagnosis.given, diagnosis.guilty) == (False, None)
    assert diagnosis.samples >= 1


def test_no_cure():
    assert debug(OVERFLOWING, cure=False).cure is None


def test_the_tolerance_decides():
    strict = debug(QUIET, tolerance=1e-6)
    assert strict.guilty.fault == "rounding"
    assert debug(QUIET, tolerance=1e-6).excess == pytest.approx(strict.error / 1e-6, rel=1e-3)


def test_samples_pass_side_by_side_once(monkeypatch):
    asked = []
    ask = Child.ask

    def noted(self, operation, *arguments):
        asked.append(operation)
        return ask(self, operation, *arguments)

    monkeypatch.setattr(Child, "ask", noted)
    samples = [{"x": array(2, 4, low=0.5, seed=seed)} for seed in range(5)]
    diagnosis = amp.debug(QUIET, inputs=samples, cure=False)
    assert diagnosis.samples == 5
    assert diagnosis.passes <= 3
    assert asked.count("compare") == 5


# ---- what is refused ----

# A Transpose that a tool has moved before the node whose name stays: its result has another shape.
BEFORE = "(float[2,4] x) => (float[4,2] y) { [m] h = Mul (x, half) [t] i = Transpose (h) [a] y = Add (i, i) }"
BEHIND = """(float[2,4] x) => (float[4,2] y) { z = Cast<to=10> (x) [t2] p = Transpose (z) [m] h = Mul (p, half16)
    [n] q = Add (h, h) y = Cast<to=1> (q) }"""


def with_domain(graph):
    return parse(graph, imports=', "nowhere": 1')


LOW = converted(QUIET)
# Words of the message -> the class, and what is done.
REFUSED = {
    "has no float16 or bfloat16 values": (InputError, lambda: debug(QUIET, QUIET)),
    "has float16 values itself": (InputError, lambda: debug(LOW, LOW)),
    "has float16 values itself: expected the float32": (InputError, lambda: debug(LOW)),
    "choose float16 or bfloat16, and no level": (OptionError, lambda: debug(QUIET, level="O0")),
    "the low model has the input 'z', which the float32 model lacks": (
        InputError,
        lambda: debug(QUIET, model_of("(float16[2,4] z) => (float16[2,4] y) { y = MatMul (z, w16) }")),
    ),
    "cannot be diagnosed: the float32 model does not load": (
        InputError,
        lambda: debug(with_domain(NARROW + " { y = nowhere.Nothing (x) }")),
    ),
    "cannot be diagnosed: the emulated program does not run": (
        InputError,
        lambda: debug(QUIET, with_domain(NARROW + " { h = Cast<to=10> (x) i = nowhere.A (h) y = Cast<to=1> (i) }")),
    ),
    "the low model lacks the output 'y' of the float32 model": (
        InputError,
        lambda: debug(QUIET, model_of("(float[2,4] x) => (float16[2,4] z) { z = Cast<to=10> (x) }")),
    ),
    "'x'": (InputError, lambda: debug(QUIET, inputs={"x": array(2, 5)})),
    "gone.onnx": (InputError, lambda: debug("gone.onnx")),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words):
    kind, action = REFUSED[words]
    with pytest.raises(kind) as caught:
        action()
    assert words in str(caught.value)


def test_a_pair_of_two_shapes_is_no_pair():
    diagnosis = debug(model_of(BEFORE), model_of(BEHIND))
    assert diagnosis.error < 1e-3
    assert "m" in diagnosis.unmatched
    assert all(row.own_error < 1e-3 for row in diagnosis.nodes)


def test_models_that_do_not_run_side_by_side(monkeypatch):
    def ask(self, operation, *arguments):
        if operation == "compare":
            raise RuntimeCrash("killed")
        return asked(self, operation, *arguments)

    asked = Child.ask
    monkeypatch.setattr(Child, "ask", ask)
    with pytest.raises(InputError, match=r"the two models do not run side by side: .*killed"):
        debug(QUIET)


CHOOSING = """({kind}[2,4] x) => ({kind}[2,4] y) {{
    [a] h = MatMul (x, {w}) [m] m = ReduceMax<keepdims=0> (h) [g] t = Greater (m, {half})
    [i] z = If (t) <then_branch = g1 () => ({kind}[2,4] p) {{ [r] p = Relu (h) }},
                    else_branch = g2 () => ({kind}[2,4] q) {{ [n] q = Neg (h) }}>
    [b] y = Sigmoid (z) }}"""


@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_branch_that_is_taken_is_diagnosed(dtype, scale):
    model = model_of(CHOOSING.format(kind="float", w="w", half="half"))
    low = converted(model, dtype)
    inputs = {"x": scale * array(2, 4)}
    diagnosis = debug(model, low, inputs=inputs)
    h = inputs["x"] @ WEIGHTS["w"]
    branch = "r" if h.max() > 0.5 else "n"
    assert [row.node for row in diagnosis.nodes] == ["a", "m", "g", branch, "b"]
    assert diagnosis.guilty is None


def test_a_mended_model_that_is_refused_leaves_the_diagnosis(monkeypatch, tmp_path):
    module = importlib.import_module("amp_transpiler.diagnosis.debug")

    def refused(*_, **__):
        raise CheckFailed("output 'y' differs by 3%, allowed are 2%", None)

    monkeypatch.setattr(module, "transpile", refused)
    diagnosis = debug(OVERFLOWING, fix=tmp_path / "mended.onnx")
    assert diagnosis.guilty.node == "square"
    assert diagnosis.cure.nodes
    assert diagnosis.cure.written is None
    assert any(note.startswith("the mended model was not written: output 'y'") for note in diagnosis.notes)
