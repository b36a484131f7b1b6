"""The recorded table: what it holds a conversion to, and that it only gets better."""

from __future__ import annotations

import dataclasses
import json
import math
import types

import pytest

from tests.corpus import limits
from tests.corpus.judging import contradictions
from tests.corpus.limits import FILE, Entry, faults, record, recorded
from tests.oracle.judge import Values

ENTRY = Entry(error=1e-2, low=10, casts=4)
NAME, MARK, VARIANT = "shipped/a/b.onnx", "abcd1234", "O2 float16"


def _measured(entry, mark=MARK, variant=VARIANT):
    return {"model": NAME, "mark": mark, "variant": variant, "row": entry.row()}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "limits.json"
    record([_measured(ENTRY)], forced=False, file=path)
    return path


@pytest.fixture
def table(file, monkeypatch):
    entries = recorded(file)
    monkeypatch.setattr(limits, "recorded", lambda: entries)


WORSE = {
    "error 0.0157": {"error": 0.0157},
    "error None": {"error": None},
    "error inf": {"error": math.inf},
    "9 low nodes": {"low": 9},
    "5 casts": {"casts": 5},
    "0.01 of the integers": {"differing": 0.01},
}


@pytest.mark.parametrize("said", WORSE)
def test_what_is_worse_is_a_fault(said, table):
    (fault,) = faults(NAME, MARK, VARIANT, dataclasses.replace(ENTRY, **WORSE[said]), 1000)
    assert said in fault


@pytest.mark.parametrize("better", [{}, {"error": 0.0152}, {"error": 0.0}, {"low": 11}, {"casts": 3}])
def test_what_is_no_worse_is_none(better, table):
    assert not faults(NAME, MARK, VARIANT, dataclasses.replace(ENTRY, **better), 1000)


@pytest.mark.parametrize(
    ("level", "entry", "is_fault"),
    [
        ("auto", Entry(0.019, 11, 4), False),
        ("auto", Entry(0.019, 10, 4), True),
        ("auto", Entry(None, 11, 4), True),
        ("auto", Entry(0.019, 11, 5), True),
        ("O2", Entry(0.019, 11, 4), True),
    ],
)
def test_level_auto_may_spend_error_on_low_nodes(level, entry, is_fault, tmp_path, monkeypatch):
    variant = f"{level} float16"
    record([_measured(ENTRY, variant=variant)], forced=False, file=tmp_path / "limits.json")
    entries = recorded(tmp_path / "limits.json")
    monkeypatch.setattr(limits, "recorded", lambda: entries)
    assert bool(faults(NAME, MARK, variant, entry, 1000)) == is_fault


def test_few_elements_get_more_room(table):
    entry = dataclasses.replace(ENTRY, error=0.021)
    assert faults(NAME, MARK, VARIANT, entry, 1000)
    assert not faults(NAME, MARK, VARIANT, entry, 3)


def test_what_is_not_in_the_table_is_held_to_nothing(table):
    bad = Entry(None, 0, 99)
    assert faults(NAME, MARK, VARIANT, bad, 10)
    assert not faults(NAME, "another", VARIANT, bad, 10)
    assert not faults("exported/x/y.onnx", MARK, VARIANT, bad, 10)
    assert not faults(NAME, MARK, "O1 float16", bad, 10)


RECORDED = [
    ({"error": 5e-3}, True),
    ({"error": 9.9e-3}, False),  # on another machine the sums are others
    ({"low": 11}, True),
    ({"casts": 3}, True),
    ({"low": 9, "casts": 3}, False),
    ({"error": 5e-3, "casts": 5}, False),
    ({"error": None, "low": 11}, False),
    ({"differing": 0.1, "low": 11}, False),
]


@pytest.mark.parametrize(("change", "taken"), RECORDED)
def test_only_what_is_better_is_written(change, taken, file):
    entry = dataclasses.replace(ENTRY, **change)
    assert record([_measured(entry)], forced=False, file=file) == taken
    assert recorded(file)[NAME][1][VARIANT] == (entry if taken else ENTRY)
    record([_measured(entry)], forced=True, file=file)
    assert recorded(file)[NAME][1][VARIANT] == entry


def test_another_file_of_a_shipped_model_is_written_by_force_only(file):
    other = _measured(ENTRY, mark="another", variant="O1 float16")
    assert record([other], forced=False, file=file) == 0
    assert record([other], forced=True, file=file) == 1
    assert recorded(file) == {NAME: ("another", {"O1 float16": ENTRY})}


def test_the_table_comes_back_as_it_was_written(file):
    extremes = {"O1 float16": Entry(math.inf, 0, 0, 0.5), "auto bfloat16": Entry(None, 3, 2)}
    record([_measured(entry, variant=variant) for variant, entry in extremes.items()], forced=False, file=file)
    assert recorded(file)[NAME] == (MARK, {VARIANT: ENTRY, **extremes})


def test_the_table_of_the_repository():
    assert FILE.stat().st_size < 150_000
    table = json.loads(FILE.read_text())
    assert list(table["models"]) == sorted(table["models"])
    assert table["variants"] == sorted(table["variants"])
    for name, (_, entries) in recorded().items():
        assert entries, name
        assert all(entry.low >= 0 and entry.casts >= 0 for entry in entries.values())


def _report(word, *, part="", gains=(), **relative):
    rows = {name: types.SimpleNamespace(relative=value, part=part) for name, value in relative.items()}
    return types.SimpleNamespace(verdict_word=word, verdict=word, outputs=rows, draws=None, gains=dict(gains))


CONTRADICTED = [
    ("verified", 0.001, 0.0035, ""),
    ("verified", 0.001, 0.005, "0.001 in the report, 0.005 by the oracle"),
    ("compared", 0.005, 0.001, "0.005 in the report"),
    ("verified", 0.019, 0.021, "'verified', but the oracle finds y: 0.021"),
    ("plausible", 0.019, 0.021, "'plausible', but"),
    ("compared", 0.019, 0.021, ""),
    ("compared", 1.0, math.inf, "inf by the oracle"),
    ("compared", math.inf, math.inf, ""),
    ("not checked", 0.0, 1e-3, ""),
    ("not checked", 0.0, 0.021, "'not checked', but"),
    ("structure only", 0.0, 0.5, ""),
]


@pytest.mark.parametrize(("word", "ours", "theirs", "said"), CONTRADICTED)
def test_contradictions(word, ours, theirs, said):
    words = contradictions(_report(word, y=ours), Values({"y": theirs}), "float16")
    assert bool(words) == bool(said)
    assert not said or said in words[0]


@pytest.mark.parametrize("stated_of", [{"part": "index 3 of the last axis, of 80"}, {"gains": {"at a tenth": 0.019}}])
def test_the_error_of_a_part_or_a_level_may_be_larger_than_that_of_the_whole(stated_of):
    assert not contradictions(_report("verified", y=0.019, **stated_of), Values({"y": 0.001}), "float16")
    assert contradictions(_report("verified", y=0.001, **stated_of), Values({"y": 0.015}), "float16")
    assert contradictions(_report("verified", y=0.019), Values({"y": 0.001}), "float16")


def test_labels_that_differ_contradict_a_good_word():
    values = Values({}, differing=0.02)
    assert "0.02 of the integers" in contradictions(_report("verified"), values, "float16")[0]
    assert not contradictions(_report("compared"), values, "float16")


@pytest.mark.parametrize(("integers", "differing", "contradicted"), [(32, 1, 0), (32, 2, 1), (8, 1, 1), (1, 1, 1)])
def test_one_of_many_integers_may_be_a_hairs_breadth_from_another(integers, differing, contradicted):
    values = Values({}, differing=differing / integers, integers=integers)
    assert len(contradictions(_report("verified"), values, "bfloat16")) == contradicted


def test_an_output_that_the_report_leaves_out_is_a_contradiction():
    assert "z is not in the report" in contradictions(_report("compared"), Values({"z": 0.1}), "float16")[0]
