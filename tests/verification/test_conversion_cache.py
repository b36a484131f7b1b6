"""Verified conversions in the user's cache: an equal question is converted and its file opened, others are compared."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.files.user_cache import FOLDER_VARIABLE
from amp_transpiler.verification import check_file, verify
from tests import support
from tests.support import array, chain

W = array(4, 4, seed=1, scale=0.5)
MODEL = chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=W)
X = {"x": array(2, 4)}
ASKED = {"inputs": X, "tolerance": 1e-4}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "verified"


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory):
    """The report of the usual question, and the cache that it leaves: a search, which nearly every test begins with."""
    folder = tmp_path_factory.mktemp("asked")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
        return amp.transpile(MODEL, **ASKED, prefer="size"), folder


@pytest.fixture
def first(asked_once, cache) -> amp.Report:
    """The report of the usual question, which this test's cache knows."""
    report, folder = asked_once
    shutil.copytree(folder, cache.parent)
    return report


@pytest.fixture
def forbidden(monkeypatch):
    """Call it, and the next comparison with float32 is a fault of its own."""

    def forbid() -> None:
        monkeypatch.setattr(verify, "make_reference", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("compares")))

    return forbid


def told(report):
    return {
        name: getattr(report, name) for name in ("verdict", "outputs", "checks", "repaired", "decisions", "headroom")
    }


def test_an_equal_question_is_not_compared_again(forbidden, tmp_path):
    first = amp.transpile(MODEL, tmp_path / "one.onnx", **ASKED, prefer="size")
    assert first.repaired
    forbidden()
    again = amp.transpile(MODEL, tmp_path / "two.onnx", **ASKED, prefer="size")
    assert told(again) == told(first)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert not any("run before" in note for note in first.notes)
    assert any("run before" in note for note in again.notes)


OTHERS = {
    "data": {"inputs": {"x": array(2, 4, seed=5)}},
    "tolerance": {"tolerance": 2e-4},
    "metric's limit": {"mismatch": 0.5},
    "objective": {"prefer": "time"},
    "device": {"device": "T4"},
    "format": {"dtype": "bfloat16", "tolerance": 1e-3},
    "regions": {"disable_amp": ["v2"]},
    "regions that change nothing": {},
    "no cache": {"cache": False},
    "frontier": {"frontier": True},
    "data that can be read once": {"inputs": (sample for sample in [X])},
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_question_is_compared(name, first, forbidden):
    asked = {**ASKED, "prefer": "size", **OTHERS[name]}
    if name == "regions that change nothing":
        asked["disable_amp"] = [f"^{first.repaired[0]}$"]
    forbidden()
    with pytest.raises(RuntimeError, match="compares"):
        amp.transpile(MODEL, **asked)


@pytest.mark.usefixtures("first")
def test_another_weight_is_another_question(forbidden):
    changed = W.copy()
    changed[0, 0] += 1.0
    forbidden()
    with pytest.raises(RuntimeError, match="compares"):
        amp.transpile(chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=changed), **ASKED, prefer="size")


@pytest.mark.parametrize("write", [np.savez, None])
def test_files_of_data_count_by_their_content(write, forbidden, tmp_path):
    file = tmp_path / "data.npz"
    np.savez(file, **X)
    amp.transpile(MODEL, inputs=str(file), tolerance=1e-4, prefer="size")
    forbidden()
    if write is None:
        assert amp.transpile(MODEL, inputs=str(file), tolerance=1e-4, prefer="size").verdict_word == "verified"
        return
    write(file, x=array(2, 4, seed=6))
    with pytest.raises(RuntimeError, match="compares"):
        amp.transpile(MODEL, inputs=str(file), tolerance=1e-4, prefer="size")


def spoil(folder, change):
    (file,) = folder.iterdir()
    record = json.loads(file.read_text())
    file.write_text(change(record))


SPOILED = {
    "no JSON": lambda _: "{",
    "a field is missing": lambda record: json.dumps({k: v for k, v in record.items() if k != "checks"} | {"more": 1}),
    "another result": lambda record: json.dumps({**record, "result": "0" * 40}),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_record_that_does_not_fit_is_made_anew(name, first, cache):
    spoil(cache, SPOILED[name])
    again = amp.transpile(MODEL, **ASKED, prefer="size")
    assert told(again) == told(first)
    assert not any("run before" in note for note in again.notes)


def test_what_needs_no_search_is_compared_each_time(forbidden):
    amp.transpile(MODEL, inputs=X, prefer="size")
    forbidden()
    with pytest.raises(RuntimeError, match="compares"):
        amp.transpile(MODEL, inputs=X, prefer="size")


@pytest.mark.usefixtures("first")
def test_a_file_that_does_not_open_is_refused(monkeypatch):
    from amp_transpiler.verification.structure import LoadResult

    monkeypatch.setattr(check_file, "check_load", lambda *_: LoadResult("refused", "for the test"))
    with pytest.raises(amp.CheckFailed, match="for the test"):
        amp.transpile(MODEL, **ASKED, prefer="size")


def test_made_up_inputs_are_part_of_no_question(forbidden):
    first = amp.transpile(MODEL, tolerance=1e-4, prefer="size")
    forbidden()
    assert support.decisions(amp.transpile(MODEL, tolerance=1e-4, prefer="size")) == support.decisions(first)
