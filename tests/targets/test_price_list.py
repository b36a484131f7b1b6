"""The price list: its form, and what is wrong with another."""

from __future__ import annotations

import pytest

from amp_transpiler.targets.devices import DEVICES
from amp_transpiler.targets.price_list import parse_prices, price_list

FACTS = """
device: H100
release: 1.31.1
runs: a run
gap: 2 us
gap in a graph: 0.5 us
stream: 2.5 TB/s
other bandwidth: 1.5 TB/s
other rate: 350 TFLOP/s
other least: 2.5 us
"""
HEAD = "kernel | format | start us | element ps | step ns | TFLOP/s | mark | evidence\n"


def parsed(rows: str, facts: str = FACTS):
    return parse_prices((facts + HEAD + rows).splitlines())


def test_the_list_is_of_a_known_device_and_every_row_has_evidence():
    listed = price_list()
    assert listed.device in DEVICES
    assert (listed.other_bandwidth, listed.other_rate, listed.other_least) == (1.5e12, 350e12, pytest.approx(2.5e-6))
    assert 0 < listed.gap_in_graph < listed.gap < 1e-5
    for row in listed.rows.values():
        assert row.evidence
        assert 0 < row.start < 1e-5
        assert 0 <= row.element < 1e-10
        assert 0 <= row.step < 1e-6
        assert row.element or row.step or row.rate or row.kernel == "Pointers to matrices"


def test_a_row_is_in_seconds():
    row = parsed("Relu | float32 tf32 | 1.5 | 2.4 | 100 | 235 | measured | a program\n").rows["Relu", "tf32"]
    numbers = (row.start, row.element, row.step, row.rate)
    assert numbers == pytest.approx((1.5e-6, 2.4e-12, 1e-7, 2.35e14))
    assert (row.mark, row.evidence, row.counts) == ("measured", "a program", True)


@pytest.mark.parametrize(("mark", "counts"), [("measured", True), ("derived", True), ("inferred", False)])
def test_what_is_inferred_never_counts_as_measured(mark, counts):
    rows = parsed(f"Relu | float16 | 1 | 2 | - | - | {mark} | x\n").rows
    assert rows["Relu", "float16"].counts is rows["Relu", "bfloat16"].counts is counts
    assert rows["Relu", "bfloat16"].mark == ("inferred" if mark == "inferred" else "derived")


def test_a_price_of_bfloat16_is_its_own_where_there_is_one():
    rows = parsed(
        "Relu | bfloat16 | 9 | 2 | - | - | measured | x\nRelu | float16 | 1 | 2 | - | - | measured | x\n"
    ).rows
    assert rows["Relu", "bfloat16"].start == pytest.approx(9e-6)


@pytest.mark.parametrize(
    ("rows", "facts", "message"),
    [
        ("Relu | float32 | 1.5 | 2.4\n", FACTS, r"prices, line 12: 4 cells, expected 8: kernel, format"),
        (
            "Relu | float32 | 1 | 2 | - | - | guessed | x\n",
            FACTS,
            r"mark 'guessed' .* expected one of measured, derived",
        ),
        ("Relu | float32 | 1 | 2 | - | - | measured |\n", FACTS, r"evidence ''; expected"),
        (2 * "Relu | float32 | 1 | 2 | - | - | measured | x\n", FACTS, r"line 13: Relu has a second price in float32"),
        ("", FACTS.replace("gap: 2 us\n", ""), r"prices: no line for gap; expected `name: value` above the rows"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(rows, facts, message):
    with pytest.raises(ValueError, match=message):
        parsed(rows, facts)
