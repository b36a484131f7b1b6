"""The errors of ONNX's node cases on a device follow from the table of its arithmetic, but for families by name."""

from __future__ import annotations

import collections
import math

import pytest

import node_arithmetic
from corpus.backend import write_node_tests
from node_arithmetic import Case, Outcome, examine, family, read

# Family -> how many case-formats, of those that the device computed otherwise than the plain emulation, do not follow
# to seven digits, and why.
REST = {
    "attention, expanded": (
        41,
        "where the factor of the scores is fused is not known; the largest of -inf alone is finite, in float32, too",
    ),
    "attention": (32, "garbled pasts; bodies that onnx cannot write out; sums in another order, some by processor"),
    "flexattention, expanded": (6, "likewise"),
    "resize": (6, "linear weights in float16: noise stands for them"),
    "lstm": (3, "cuDNN rounds every step: noise stands for it"),
    "rms_normalization, expanded": (3, "which kernel runs is not known"),
    "gemm": (2, "the order in which alpha and beta are applied is not known"),
    "layer_normalization": (2, "one result is one unit off"),
    "rotary": (2, "products are rounded: noise stands for it"),
    "gelu": (1, "the last element of an odd count is not written"),
    "nllloss, expanded": (1, "not known"),
}
# Of those, how many follow on a processor that adds up as the device does: its float32 sums decide a rounding.
BY_PROCESSOR = {"attention": 6}
DIFFERING = 303
FOLLOW = 204


def outcome(ruled, device, reason=""):
    return Outcome(Case("test_a", "float16", 1, 0.1, device, False), 0.1, ruled, reason)


DIGITS = [
    # (the rule's error, the device's, digits)
    (0.1, 0.1, 7),
    (0.1, 0.1 * (1 + 5e-8), 7),
    (0.1, 0.1 * (1 + 5e-7), 4),
    (0.1, 0.1001, 2),
    (0.1, 0.11, 0),
    (math.inf, math.inf, 7),
    (0.0, 0.0, 7),
    (math.inf, 0.1, 0),
    (0.1, math.inf, 0),
]


@pytest.mark.parametrize(("ruled", "device", "digits"), DIGITS)
def test_to_how_many_digits_a_case_follows(ruled, device, digits):
    assert outcome(ruled, device).digits == digits
    assert outcome(ruled, device, "another conversion").digits < 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_hardswish_expanded", "hardswish, expanded"),
        ("test_layer_normalization_2d_axis0_expanded_ver18", "layer_normalization, expanded"),
        ("test_reduce_mean_default_axes_keepdims_random", "reduce_mean"),
        ("test_gelu_tanh_1", "gelu"),
    ],
)
def test_families(name, expected):
    assert family(name) == expected


def test_the_device_s_errors_are_read():
    cases = read()
    assert len(cases) == 1214
    assert len({(case.name, case.dtype) for case in cases}) == len(cases)
    assert sum(not case.is_same for case in cases) == DIFFERING
    assert all(case.low > 0 for case in cases)
    [gelu] = [case for case in cases if (case.name, case.dtype) == ("test_gelu_tanh_1", "float16")]
    assert (gelu.low, gelu.is_same, round(gelu.device, 6)) == (1, False, 0.185512)


def test_what_fails_is_a_reason(tmp_path):
    assert examine(tmp_path, read()[0]).reason.startswith("FileNotFoundError")


def test_lines_name_the_rest_by_family():
    text = list(node_arithmetic.lines([outcome(0.1, 0.1), outcome(0.1, 0.2), outcome(0.1, 0.2, "fails")]))
    assert text[:2] == ["3 case-formats; 2 converted as then", "  to 7 digits: 1"]
    assert text[4:] == [
        "a: 2",
        "    test_a float16: emulated 0.1, rule 0.1, device 0.2",
        "    test_a float16: fails, device 0.2",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx's generators overflow on purpose
def test_errors_on_the_device_follow_from_the_table(tmp_path):
    write_node_tests(tmp_path)
    folder = tmp_path / "onnx_backend" / "node"
    cases = [case for case in read() if not case.is_same]
    absent = sorted({case.name for case in cases if not (folder / case.name).exists()})
    if absent:
        pytest.skip(f"the installed onnx does not have {', '.join(absent)}")
    outcomes = [examine(folder, case) for case in cases]
    assert [str(row) for row in outcomes if row.reason] == []
    rest = collections.Counter(family(row.case.name) for row in outcomes if row.digits < 7)
    spared = collections.Counter({name: count - rest[name] for name, (count, _) in REST.items() if rest[name] != count})
    assert rest.keys() == REST.keys()
    assert all(0 <= count <= BY_PROCESSOR.get(name, 0) for name, count in spared.items()), spared
    assert sum(row.digits >= 7 for row in outcomes) == FOLLOW + spared.total()
