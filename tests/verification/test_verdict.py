"""The claims of a report: a verdict only where something was compared, plain words where nothing became low."""

import json
import pathlib
import re
from html import unescape

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, report_as_dict
from amp_transpiler.report.verdict import SENTENCES, Verdict
from amp_transpiler.report.wording import remarks
from amp_transpiler.systems.program_names import resolved_lists
from tests.support import array, parse

W = array(4, 4, seed=1)
PLAIN = "(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }"
ROOT = "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) a = Abs (h) n = Neg (a) m = Sub (n, a) y = Sqrt (m) }"
EMPTY = "(float[0,4] x) => (float[0,4] y) { y = MatMul (x, w) }"
TWO = "(float[2,4] x) => (float[2,4] y, float[2,4] z) { y = MatMul (x, w) n = Sub (x, x) z = Div (n, n) }"
INTEGER = "(float[2,4] x) => (int64[2] y) { h = MatMul (x, w) y = ArgMax <axis = 1, keepdims = 0> (h) }"


def without_outputs():
    model = parse(PLAIN, w=W)
    del model.graph.output[:]
    return model


# ---- the verdict: something was compared, or it is no verdict ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "inputs", "why"),
    [
        (without_outputs, None, "the model has no outputs"),
        (lambda: parse(PLAIN, w=np.full((4, 4), np.nan, np.float32)), None, "'y' (empty, NaN or infinite in float32)"),
        (lambda: parse(ROOT, w=W), {"x": array(2, 4)}, "'y' (empty, NaN or infinite in float32)"),
        (lambda: parse(EMPTY, w=W), {"x": array(0, 4)}, "'y' (empty, NaN or infinite in float32)"),
        (lambda: parse(PLAIN, w=np.zeros((4, 4), np.float32)), None, "'y' (practically zero on made-up inputs)"),
    ],
    ids=["no outputs", "NaN parameters", "NaN results", "empty", "practically zero"],
)
def test_nothing_is_verified_where_nothing_was_compared(make, inputs, why, dtype):
    report = amp.transpile(make(), level="O2", dtype=dtype, inputs=inputs)
    assert report.verdict.startswith("structure only: ")
    assert report.verdict.endswith(why)
    assert report.warnings == ()
    told = any(remark.startswith("not compared with the float32 model") for remark in report.notes)
    assert told == bool(report.outputs), report.notes
    assert not any("compared on made-up inputs" in remark for remark in report.notes)


@pytest.mark.parametrize("text", [PLAIN, INTEGER, TWO])
def test_one_value_to_compare_is_enough(text):
    report = amp.transpile(parse(text, w=W), level="O2", inputs={"x": array(2, 4)})
    assert report.verdict.startswith("compared: all 2 integers agree" if text is INTEGER else "compared: within 0.")
    assert ("not judged: 'z' (empty" in report.verdict) == (text is TWO)


def test_a_zero_output_of_given_inputs_shows_nothing():
    report = amp.transpile(parse(PLAIN, w=W), level="O2", inputs={"x": np.zeros((2, 4), np.float32)})
    assert report.verdict == "structure only: no output can be judged; not judged: 'y' (zero in all the data)"


# ---- nothing became low ----


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("text", "options", "note"),
    [
        ("[n] y = Exp (x)", {"policy": "torch"}, "nothing became float16: torch"),
        ("[n] h = Relu (x) [m] y = Relu (h)", {"policy": "torch"}, "promoted, input '...' is float32 (2 of 2 nodes)"),
        ("[n] y = Relu (x)", {"preset": "mp1"}, "nothing became bfloat16: preset mp1: "),
        ("[n] y = Relu (x)", {"policy": "torch", "keep_io_types": ["x"]}, "no node became float16: "),
        ("[n] y = MatMul (x, w)", {"policy": "torch"}, None),
    ],
)
def test_the_report_says_that_nothing_became_low(text, options, note, verify):
    model = parse(f"(float[2,4] x) => (float[2,4] y) {{ {text} }}", w=W)
    report = amp.transpile(model, verify=verify, **options, prefer="size")
    remarks_on_low = [remark for remark in remarks(report) if re.search("became b?float16", remark)]
    assert len(remarks_on_low) == (note is not None)
    assert report_as_dict(report)["notes"] == list(remarks(report))
    for remark in remarks_on_low:
        assert note in remark
        assert remark.split("'")[0] in page([(report, None)]).replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"policy": "torch"}, "policy torch"),
        ({"preset": "mp1", "mixed_ops": "gemm"}, "preset mp1, mixed gemm"),
        ({"level": "O2"}, "level O2"),
    ],
)
def test_json_tells_what_was_asked(options, asked):
    record = report_as_dict(amp.transpile(parse(PLAIN, w=W), verify=False, **options, prefer="size"))
    assert record["asked"] == asked


# ---- the command: copies, mixed operators, custom operators ----


@pytest.fixture
def model(tmp_path):
    onnx.save(parse(PLAIN, w=W), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    ("asked", "name"), [("--preset=mp0", "bf16"), ("--preset=MP0", "bf16"), ("--level=O0", "fp16")]
)
def test_a_copy_claims_no_low_format(asked, name, model, capsys):
    places = ["--json", str(model.with_suffix(".json")), "--report", str(model.with_suffix(".html"))]
    assert cli.main([str(model), asked, *places]) == 0
    written = model.with_name(f"model.{name}.onnx")
    assert written.read_bytes() == model.read_bytes()
    shown, html = " ".join(capsys.readouterr().out.split()), model.with_suffix(".html").read_text(encoding="utf-8")
    note = f"model.{name}.onnx is a copy in the source's own precision, whatever its name says"
    assert note.replace(" ", "") in shown.replace(" ", "")  # the table may break the path
    assert note in unescape(html)
    assert note in json.loads(model.with_suffix(".json").read_text())["notes"][0]
    for text in (shown, html):
        assert "float16" not in text


def test_mixed_operators_beside_mp0_are_no_copy(model, capsys):
    assert cli.main([str(model), "--preset", "mp0", "--mixed-ops", "gemm", "--disable-amp", "none|.*", "-q"]) == 0
    assert "copies" not in capsys.readouterr().err


CUSTOM = """
<ir_version: 10, opset_import: ["": 17, "my.ops": 1]>
net (float[2,4] x) => (float[2,4] y) { h = my.ops.Scale (x)  y = Relu (h) }
"""


@pytest.mark.parametrize("option", ["--black", "--white"])
def test_a_custom_operator_of_the_model_is_listed_without_a_warning(option, tmp_path, monkeypatch, capsys):
    from amp_transpiler import pipeline

    onnx.save(onnx.parser.parse_model(CUSTOM), tmp_path / "model.onnx")
    seen = []

    def transpile(src, dst=None, **options):
        seen.append(options["amp_lists"])
        return amp.Report("a", "O1", "float16", "cuda")

    monkeypatch.setattr(pipeline, "transpile", transpile)
    assert cli.main([str(tmp_path / "model.onnx"), option, "my.ops::Scale", option, "Tanh", "-q"]) == 0
    assert capsys.readouterr().err == ""
    lists = resolved_lists(seen[0], amp.load(tmp_path / "model.onnx"), "float16")
    black = option == "--black"
    for name in ("my.ops::Scale", "Tanh"):
        assert (name in lists.custom_black_list, name in lists.black_list) == (black, black)
        assert (name in lists.custom_white_list, name in lists.white_list) == (not black, not black)
        assert (name in lists.unsupported_list) == black


# ---- the words ----

NOISE = "(float[2,4] x) => (float[2,4] y) { [a] a = Add (x, big) [s] y = Sub (a, big) }"
DESTROYED = parse(NOISE, big=np.float32(30000.0))  # what is left of x is rounding
WARNED = {
    "O2": {"level": "O2"},
    "O2 in bfloat16": {"level": "O2", "dtype": "bfloat16"},
    "torch": {"policy": "torch", "amp_lists": amp.AutoMixedPrecisionLists(["Add", "Sub"])},
    "raf": {"policy": "raf", "amp_lists": amp.AutoMixedPrecisionLists(["Add", "Sub"])},
    "mxnet": {"policy": "mxnet", "amp_lists": amp.AutoMixedPrecisionLists(["Add", "Sub"])},
    "mp4": {"preset": "mp4", "dtype": "float16"},
}


@pytest.mark.parametrize("options", WARNED.values(), ids=WARNED)
def test_a_destroyed_output_is_compared_and_warned_of(options):
    report = amp.transpile(DESTROYED, inputs={"x": array(2, 4)}, **options, prefer="size")
    assert report.outputs["y"].relative > 0.5
    assert report.verdict_word == "compared"
    assert report.verdict.endswith("not run on a GPU); no limit was set")
    [warning] = report.warnings
    assert warning.startswith("output 'y' differs by ")
    assert report_as_dict(report)["warnings"] == [warning]
    assert "output 'y' differs by" in unescape(page([(report, None)]))


def test_an_accurate_output_is_not_warned_of():
    assert amp.transpile(parse(PLAIN, w=W), level="O2", inputs={"x": array(2, 4)}).warnings == ()


@pytest.mark.parametrize("quiet", [(), ("-q",), ("--json", "-")])
def test_the_command_warns_and_exits_with_0(quiet, tmp_path, capsys):
    onnx.save(DESTROYED, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=array(2, 4))
    assert cli.main([str(tmp_path / "m.onnx"), "--level", "O2", "--inputs", str(tmp_path / "x.npz"), *quiet]) == 0
    shown = capsys.readouterr()
    assert "output 'y' differs by" in " ".join((shown.err if quiet else shown.out).split())


GIVEN = {"x": array(2, 4)}
WORDS = {
    "verified": (PLAIN, {"inputs": GIVEN}),
    "verified, a tolerance at O2": (PLAIN, {"inputs": GIVEN, "level": "O2", "tolerance": "1%"}),
    "plausible": (PLAIN, {}),
    "plausible: one is not judged": (TWO, {"inputs": GIVEN}),
    "compared": (PLAIN, {"inputs": GIVEN, "level": "O1"}),
    "structure only": (ROOT, {"inputs": GIVEN}),
    "not checked": (PLAIN, {"verify": False}),
    "not checked: a copy": (PLAIN, {"level": "O0"}),
    "failed": (PLAIN, {"inputs": GIVEN, "level": "O2", "tolerance": 1e-9}),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_verdict_begins_with_one_of_six_words(case):
    text, options = WORDS[case]
    try:
        report = amp.transpile(parse(text, w=W), **options, prefer="size")
    except amp.CheckFailed as error:
        report = error.report
    word = re.split("[,:]", case)[0]
    assert report.verdict_word == word
    assert report.verdict.startswith(f"{word}: ")
    assert json.loads(dump(report_as_dict(report)))["verdict_word"] == word


def test_the_page_has_the_sentence_of_each_word():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*(.+?)\* \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(word.value, SENTENCES[word]) for word in Verdict]


def test_another_verdict_has_no_word():
    with pytest.raises(ValueError, match="'fine'"):
        amp.Report("a", "O1", "float16", "cuda", verdict="fine: really").verdict_word  # noqa: B018


# ---- limits of single outputs, and of labels ----

SCORES = array(200, 8, seed=3, scale=0.2)
SCORES[:, 0] -= 1.0
SCORES[0, 0] = 5.0  # the only row whose label is 0, as it is for all rows once they are rounded to equal numbers
LABELS = parse(
    "(float[200,8] x) => (int64[200] y) { a = Add (x, big) r = Relu (a) y = ArgMax <axis = 1, keepdims = 0> (r) }",
    big=np.float32(30000.0),
)


def labelled(**options):
    try:
        return amp.transpile(LABELS, inputs={"x": SCORES}, **options, prefer="size")
    except amp.CheckFailed as error:
        return error.report


@pytest.mark.parametrize("options", [{}, {"tolerance": "0.01%"}, {"mismatch": 0}])
def test_labels_are_repaired_like_floats(options):
    report = labelled(headroom=1, **options)  # the constant alone fits
    assert report.verdict.startswith("verified: all 200 integers agree with float32 on 1 given sample")
    assert report.repaired


LABEL_VERDICTS = {
    "no limit": ({"level": "O2"}, "compared: 199 of 200 integers differ from float32 on"),
    "a tolerance": ({"level": "O2", "tolerance": "0.01%"}, "failed: output 'y': 199 of 200 integers differ, none may"),
    "a mismatch": ({"level": "O2", "mismatch": "1%"}, "failed: output 'y': 199 of 200 integers differ, allowed are 1%"),
    "a high one": ({"level": "O2", "mismatch": 1}, "verified: 199 of 200 integers differ from float32"),
    "a high one at auto": ({"mismatch": "99.6%", "headroom": 1}, "verified: 199 of 200 integers differ from float32"),
}


@pytest.mark.parametrize(("options", "expected"), LABEL_VERDICTS.values(), ids=LABEL_VERDICTS)
def test_labels_that_differ_are_judged(options, expected):
    report = labelled(**options)
    assert report.outputs["y"].mismatched == 199
    assert report.verdict.startswith(expected), report.verdict
    assert bool(report.warnings) == (report.verdict_word == "compared")


def test_labels_that_forced_nodes_change_fail_at_auto(tmp_path):
    forced = {"tolerance": "0.01%", "include": ".*"}
    with pytest.raises(amp.CheckFailed, match="199 of 200 integers differ"):
        amp.transpile(LABELS, tmp_path / "out.onnx", inputs={"x": SCORES}, **forced, prefer="size")
    assert not list(tmp_path.iterdir())


def test_truth_values_are_judged():
    text = "(float[2,4] x) => (bool[2,4] y) { a = Add (x, big) b = Sub (a, big) y = Less (b, x) }"
    model = parse(text, big=np.float32(30000.0))
    with pytest.raises(amp.CheckFailed, match="of 8 values differ, none may"):
        amp.transpile(model, level="O2", inputs=GIVEN, tolerance="100%")
    assert amp.transpile(model, inputs=GIVEN, prefer="size").verdict_word == "verified"  # repaired


def test_another_shape_fails_whatever_the_limits_are():
    text = "(float[2,4] x) => (int64[2,k] y) { a = Add (x, big) b = Sub (a, big) y = NonZero (b) }"
    with pytest.raises(amp.CheckFailed, match="output 'y' has another shape or structure than in float32") as error:
        amp.transpile(parse(text, big=np.float32(30000.0)), level="O2", inputs=GIVEN)
    assert error.value.report.verdict_word == "failed"


PAIR = "(float[2,4] x) => (float[2,4] y, float[2,4] z) { [h] h = MatMul (x, w) [y] y = Exp (h) [z] z = Relu (h) }"
EACH = {
    "one alone at O2": ({"level": "O2", "tolerance": "z=5%"}, "compared", "; no limit for 'y'"),
    "both": ({"level": "O2", "tolerance": {"z": 0.05, "y": "5%"}}, "verified", ""),
    "a pattern": ({"level": "O2", "tolerance": ".=5%"}, "verified", ""),
    "too tight for one": ({"level": "O2", "tolerance": "5%,z=1e-7"}, "failed", "output 'z' differs by"),
    "too tight for the other": ({"level": "O2", "tolerance": "5%,y=1e-7"}, "failed", "output 'y' differs by"),
}


@pytest.mark.parametrize(("options", "word", "part"), EACH.values(), ids=EACH)
def test_each_output_has_its_own_limit(options, word, part):
    try:
        report = amp.transpile(parse(PAIR, w=W), inputs=GIVEN, **options, prefer="size")
    except amp.CheckFailed as error:
        report = error.report
    assert (report.verdict_word, part in report.verdict) == (word, True), report.verdict


@pytest.mark.parametrize(("level", "status"), [("auto", 0), ("O2", 1)])
def test_the_command_refuses_labels_beyond_their_limit(level, status, tmp_path, capsys):
    onnx.save(LABELS, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=SCORES)
    arguments = ["--inputs", str(tmp_path / "x.npz"), "--tolerance", "0.01%", "--json", str(tmp_path / "m.json")]
    assert cli.main([str(tmp_path / "m.onnx"), "--level", level, "--prefer", "size", *arguments]) == status
    written = [file.name for file in tmp_path.glob("m.fp*.onnx")]
    assert written == ([] if status else ["m.fp32.onnx"]), "within so little nothing is low"
    record = json.loads((tmp_path / "m.json").read_text())
    assert (record["verdict_word"], record["exit_status"]) == ("failed" if status else "verified", status)
    assert ("199 of 200 integers differ, none may" in " ".join(capsys.readouterr().err.split())) == bool(status)


@pytest.mark.parametrize(
    ("count", "said"), [(1, "the only integer agrees with float32"), (2, "all 2 integers agree with")]
)
def test_integers_are_counted_in_words(count, said):
    text = f"(float[{count},4] x) => (int64[{count}] y) {{ y = ArgMax <axis = 1, keepdims = 0> (x) }}"
    report = amp.transpile(parse(text), inputs={"x": array(count, 4)}, level="O2")
    assert report.verdict.startswith(f"compared: {said}")
