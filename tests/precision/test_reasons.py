"""Reasons: a table of codes, each with a producer and a sentence; and nobody reads sentences again."""

import ast
import copy
import dataclasses
import functools
import json
import pathlib
import pickle
import re
import string

import pytest

import amp_transpiler as amp
from amp_transpiler.precision.reasons import SUBJECTS, TEMPLATES, Reason, Sentence, reason_of
from amp_transpiler.report.recipe import Recipe, RecordedNode
from tests.support import parse

ROOT = pathlib.Path(__file__).parents[2]
TABLES = ("amp_transpiler/precision/reasons.py", "amp_transpiler/report/verdict.py")


@functools.cache
def sources():
    """File of the package or the lab -> its text; without the two files that make sentences."""
    files = [path for folder in ("amp_transpiler", "lab") for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return {name: text for name, text in texts.items() if name not in TABLES}


def places(code):
    """The places of a template, each with its format."""
    parsed = string.Formatter().parse(TEMPLATES[code])
    return {name: spec for _, name, spec, _ in parsed if name is not None}


def value_for(name, spec):
    return 2 if spec.startswith("#") else f"<{name}>" if spec in ("", "()") else 0.5


# ---- the table ----


def test_codes_are_unique_and_in_order():
    assert sum(map(len, SUBJECTS.values())) == len(TEMPLATES)
    for templates in SUBJECTS.values():
        assert list(templates) == sorted(templates)


@functools.cache
def strings():
    """The short texts of the package's source, between the quotes that the formatter writes; codes have no others."""
    texts = [text for name, text in sources().items() if name.startswith("amp_transpiler/")]
    return {string for text in texts for string in re.findall(r'"([^"\n\\]+)"', text)}


PLANNED = {"words"}  # of texts that others write: `reason_of` makes it


@pytest.mark.parametrize("code", TEMPLATES)
def test_every_code_is_produced_and_says_a_sentence(code):
    assert code in strings() | PLANNED
    values = {name: value_for(name, spec) for name, spec in places(code).items()}
    reason = Reason(code, values)
    assert "{" not in str(reason)
    for name, spec in places(code).items():
        if spec in ("", "()"):
            assert f"<{name}>" in str(reason)
            assert (f"'<{name}>'" in str(reason)) != (f"<{name}>" in reason.without_names())
    assert Reason("words", {"words": str(reason)}).without_names() == reason.without_names(), (
        "quotes stand around names"
    )
    for missing in values:
        with pytest.raises(AssertionError):
            Reason(code, {name: value for name, value in values.items() if name != missing})


def test_what_templates_can_say():
    first, two = (Reason("island", {"casts": casts, "operators": 1}) for casts in (1, 2))
    assert str(first) == "an island: lower precision costs 1 more cast for 1 cheap operator"
    assert str(two) == "an island: lower precision costs 2 more casts for 1 cheap operator"
    irregular = Reason("island-quantized-casts", {"casts": 1, "operators": 0})
    assert str(irregular) == "an island: 1 cast of a quantized value for 0 operators that compute"
    assert str(Reason("white", {"operator": "Conv", "why": ""})) == "Conv is on the white list"
    assert str(Reason("white", {"operator": "Conv", "why": "conv2d"})) == "Conv is on the white list (conv2d)"


INNER = Reason("promoted", {"input": "it's"})
HELD = Reason("held", {"node": "a", "fault": INNER})


def test_a_reason_may_tell_another():
    assert str(HELD) == "it is decided with 'a', which is float32: promoted: input 'it's' is float32"
    assert HELD.without_names() == "it is decided with '...', which is float32: promoted: input '...' is float32"
    assert (HELD.code, HELD.subject) == ("held", "neighbours")
    assert Reason("held", {"node": "a", "fault": INNER}) == HELD
    assert len({HELD, INNER, Reason("promoted", {"input": "it's"})}) == 2


def test_a_reason_survives_a_record():
    record = json.loads(json.dumps(dataclasses.asdict(HELD)))
    assert Reason.of_record(record) == HELD
    with pytest.raises(KeyError):
        Reason.of_record({"code": "no such code", "values": {}})
    with pytest.raises(KeyError):
        Reason.of_record({"code": "held", "values": {}})


# Program -> the codes of its nodes, at O2. Tests of the rules provoke most codes, and so check their places, too.
PROVOKED = {
    "f = Cast <to=1> (k) y = Add (f, f)": ["user-cast", "pure"],
    "a = Constant <value = float[4] {1, 2, 3, 4}> () s = Shape (a) y = Mul (x, a)": ["reads-any", "pure"],
    "h = DynamicQuantizeLinear (x) y = Relu (x)": ["float32-scale", "pure"],
}


@pytest.mark.parametrize("body", PROVOKED)
def test_codes_of_a_program(body):
    program = parse(f"(float[4] x, int64[4] k) => (float[4] y) {{ {body} }}", opset=18)
    report = amp.transpile(program, level="O2", verify=False)
    assert [code for row in report.decisions if (code := reason_of(row.reason).code) != "constant"] == PROVOKED[body]


def test_a_recipe_need_not_say_why():
    settled = Recipe({}, {"a": RecordedNode("Conv", "low", ""), "b": RecordedNode("Relu", "low", "so")}).settled()
    assert [(each.reason.code, str(each.reason)) for each in settled.values()] == [
        ("recipe-silent", "as in the recipe"),
        ("recipe", "as in the recipe: so"),
    ]


# ---- sentences ----


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_a_sentence_is_a_text_that_knows_its_reason(copied):
    text = copied(Sentence.of(HELD))
    assert text == str(HELD)
    assert repr(text) == repr(str(HELD))
    assert json.dumps(text) == json.dumps(str(HELD))
    assert reason_of(text) == HELD


@pytest.mark.parametrize("text", ["why 'x' is not", Sentence("why 'x' is not")])
def test_another_text_says_only_itself(text):
    assert reason_of(text) == Reason("words", {"words": "why 'x' is not"})
    assert reason_of(text).without_names() == "why '...' is not"
    assert Reason("recipe", {"words": "torch's 'x'"}).without_names() == "as in the recipe: torch's '...'"


# ---- nobody reads them again ----

NAMED = {"reason", "sentence", "verdict"}
READS = {"endswith", "find", "fullmatch", "index", "match", "partition", "removeprefix", "removesuffix"}
READS |= {"replace", "rpartition", "rsplit", "search", "split", "startswith", "sub"}


def called(node):
    """The last name of an expression: `reason` of `row.reason` and of `row["reason"]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def reads(node):
    """Whether an expression reads words of a sentence."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
        return any(called(part) in NAMED for part in (node.func.value, *node.args))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        says = any(is_text(side) and getattr(side, "value", None) != "" for side in sides)
        return says and any(called(side) in NAMED for side in sides)
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row.reason.startswith('for')", True),
        ("report.verdict.partition(':')", True),
        ("record['verdict'].startswith('verified')", True),
        ("re.search('x', reason)", True),
        ("'x' in reason", True),
        ("f'{x}' not in report.verdict", True),
        ("reason == 'x'", True),
        ("reason == ''", False),
        ("reason.code == 'x'", False),
        ("'x' in texts", False),
        ("name.startswith('x')", False),
    ],
)
def test_what_counts_as_reading(text, expected):
    assert reads(ast.parse(text, mode="eval").body) is expected


@pytest.mark.slow
def test_nobody_reads_a_sentence_again():
    readers = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if reads(node)
    ]
    assert readers == []
