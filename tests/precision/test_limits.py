"""Limits of outputs: how users write them, and which one counts for which output."""

import math

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.cli.options import parse
from amp_transpiler.precision.limits import Limits, parse_mismatch, parse_tolerance, with_limits
from amp_transpiler.systems.program_names import limits_by_output
from tests.support import parse as model_of

THREE = model_of(
    "(float[2] x) => (float[2] logits, float[2] box_a, float[2] box_b) "
    "{ logits = Exp (x) box_a = Neg (x) box_b = Abs (x) }"
)

READ = {
    "a fraction": (0.01, (0.01, {})),
    "text": ("0.01", (0.01, {})),
    "a percentage": (" 1 %", (0.01, {})),
    "no limit": (math.inf, (math.inf, {})),
    "none, which float32 keeps": (0, (0.0, {})),
    "outputs": ("logits=1%,boxes=0.5", (None, {"logits": 0.01, "boxes": 0.5})),
    "both": ("2%, logits = 1%", (0.02, {"logits": 0.01})),
    "the other way round": ("logits=1%,2%", (0.02, {"logits": 0.01})),
    "a name with an equals sign": ("a=b=1%", (None, {"a=b": 0.01})),
    "a dict": ({"logits": "1%", "boxes": 0.5}, (None, {"logits": 0.01, "boxes": 0.5})),
}


@pytest.mark.parametrize(("given", "expected"), READ.values(), ids=READ)
def test_a_tolerance_is_read(given, expected):
    overall, outputs = parse_tolerance(given)
    assert (overall, outputs) == (pytest.approx(expected[0]), pytest.approx(expected[1]))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("tight", "of at least 0"),
        ("", "of at least 0"),
        ("inf", "of at least 0"),
        ("logits", "of at least 0"),
        ("logits=", "of at least 0"),
        ("logits=1%,", "of at least 0"),
        ("logits=-1%", "of at least 0"),
        ("=1%", "no name before '='"),
        ("1%,2%", "two tolerances for all outputs"),
        ("y=1%,y=2%", "'y' twice"),
        (-0.1, "of at least 0"),
        (True, "of at least 0"),
        ([0.1], "of at least 0"),
        ({"y": -1}, "of at least 0"),
        ({"y": None}, "of at least 0"),
    ],
)
def test_a_tolerance_that_cannot_be_read(given, part):
    with pytest.raises(amp.OptionError, match="tolerance is ") as error:
        parse_tolerance(given)
    assert part in str(error.value)
    assert repr(given) in str(error.value)


# a tolerance, and the percentage that the error offers, as it is written there
NO_PERCENTAGE = [
    ("1", "1%"),
    (" 1.5 ", "1.5%"),
    ("y=1", "1%"),
    (1, "'1%'"),
    (2, "'2%'"),
    (np.int64(5), "'5%'"),
    ({"y": 2}, "'2%'"),
    ({"y": "2"}, "'2%'"),
]


@pytest.mark.parametrize(("given", "offered"), NO_PERCENTAGE)
def test_a_tolerance_of_a_hundred_percent_has_its_sign(given, offered):
    with pytest.raises(amp.OptionError, match=rf"without a percent sign is [1-9]\d\d%: write {offered} for "):
        parse_tolerance(given)


@pytest.mark.parametrize("given", [1.0, np.float32(1.0), 2.5, math.inf])
def test_a_float_is_the_fraction_that_it_says(given):
    assert parse_tolerance(given) == (given, {})


@pytest.mark.parametrize(("given", "fraction"), [("1%", 0.01), ("0.5", 0.5), ("100%", 1.0), ("250%", 2.5)])
def test_what_the_command_reads_may_be_given_again(given, fraction):
    """To `transpile`, or by a recipe."""
    read = parse(["m.onnx", "--tolerance", given]).conversion.tolerance
    assert parse_tolerance(read) == (fraction, {})


@pytest.mark.parametrize(("given", "expected"), [(0, 0.0), ("0", 0.0), ("0.1%", 0.001), (1, 1.0), ("100%", 1.0)])
def test_a_mismatch_is_read(given, expected):
    assert parse_mismatch(given) == pytest.approx(expected)


@pytest.mark.parametrize("given", [-0.1, 1.01, "101%", "some", True, math.nan, "", None])
def test_a_mismatch_that_cannot_be_read(given):
    with pytest.raises(amp.OptionError, match=r"mismatch is .*: expected a share from 0 to 1"):
        parse_mismatch(given)


# (level's tolerance, the user's tolerance, the user's mismatch) -> (tolerance, mismatch) of logits, of others
COUNTS = {
    "nothing": (math.inf, None, None, (math.inf, None), (math.inf, None)),
    "the level's": (0.02, None, None, (0.02, 0.0), (0.02, 0.0)),
    "the user's": (0.02, "1%", None, (0.01, 0.0), (0.01, 0.0)),
    "one output's beside the level's": (0.02, "logits=1%", None, (0.01, 0.0), (0.02, 0.0)),
    "one output's alone": (math.inf, "logits=1%", None, (0.01, 0.0), (math.inf, None)),
    "a mismatch alone": (math.inf, None, "1%", (math.inf, 0.01), (math.inf, 0.01)),
    "a mismatch beside a tolerance": (0.02, "logits=1%", 0.5, (0.01, 0.5), (0.02, 0.5)),
    "no limit": (0.02, math.inf, None, (math.inf, None), (math.inf, None)),
}


@pytest.mark.parametrize(("level", "tolerance", "mismatch", "logits", "others"), COUNTS.values(), ids=COUNTS)
def test_which_limit_counts(level, tolerance, mismatch, logits, others):
    limits = with_limits(Limits(level), tolerance, mismatch)
    for name, expected in (("logits", logits), ("boxes", others)):
        assert (limits.for_output(name), limits.mismatch_for(name)) == expected


def test_patterns_stand_for_whole_names_and_later_ones_win():
    limits = limits_by_output(amp.load(THREE), Limits(0.5, outputs={"box_.*": 0.2, "box_b": 0.1}))
    assert dict(limits.outputs) == {"box_a": 0.2, "box_b": 0.1}
    assert (limits.for_output("logits"), limits.tolerance) == (0.5, 0.5)


@pytest.mark.parametrize("name", ["logit", "x", "ogits", "box_"])
def test_a_name_that_no_output_has(name):
    with pytest.raises(amp.OptionError, match=f"tolerance names '{name}', which is no output.*: logits, box_a, box_b"):
        amp.transpile(THREE, tolerance={name: 0.1}, prefer="size")


def test_a_similar_name_is_offered():
    with pytest.raises(amp.OptionError, match=r"did you mean 'logits'\?"):
        amp.transpile(THREE, tolerance="logit=1%", prefer="size")
