"""Evidence in the user's cache: made once for equal questions, anew for any other."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.files.user_cache import FOLDER_VARIABLE
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import Settled
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.verification import evidence_cache, search
from amp_transpiler.verification.evidence_cache import Outcome, Outcomes, remembered_evidence
from tests.support import array, chain

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}> { y = MatMul(x, w) }
"""
EVIDENCE = Evidence(
    ranges={"y": TensorRange(4.0, math.inf, "sample 1", 0.25)},
    node_errors={"MatMul_0": 1e-7, "other": math.inf},
    cast_errors={"x": 2e-8},
    node_errors_by_output={"y": {"MatMul_0": 1e-7}},
    cast_errors_by_output={"y": {"x": 2e-8}},
    alone_errors={"MatMul_0": 1.2e-7},
    estimated={"other": "no rule"},
    samples=("sample 1",),
    given=True,
)
SAMPLES = [{"x": np.float32([[1, 2], [3, 4]])}]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / "evidence"


def ask(text: str = TEXT, samples=SAMPLES, words=("float16", "cuda")) -> tuple[Evidence, bool]:
    """Return the evidence, and whether runs were made for it."""
    told: list[bool] = []

    def collect() -> Evidence:
        told.append(True)
        return EVIDENCE

    return remembered_evidence(amp.load(onnx.parser.parse_model(text)), samples, words, collect), bool(told)


def test_an_equal_question_needs_no_runs(cache):
    assert ask() == (EVIDENCE, True)
    assert ask() == (EVIDENCE, False)


OTHERS = {
    "weights": {"text": TEXT.replace("4.0}", "5.0}")},
    "graph": {"text": TEXT.replace("MatMul(x, w)", "MatMul(w, x)")},
    "sample": {"samples": [{"x": np.float32([[1, 2], [3, 5]])}]},
    "number of samples": {"samples": SAMPLES * 2},
    "format": {"words": ("bfloat16", "cuda")},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_question_is_answered_anew(cache, other):
    ask()
    assert ask(**other)[1]


def test_a_damaged_record_is_made_anew(cache, caplog):
    ask()
    [file] = cache.iterdir()
    file.write_bytes(b'{"ranges": 3}')
    assert ask() == (EVIDENCE, True)
    assert "cannot be read" in caplog.text
    assert ask()[1] is False


def test_a_new_version_asks_anew(cache, monkeypatch):
    ask()
    monkeypatch.setattr(evidence_cache, "__version__", "another")
    assert ask()[1]


# ---- outcomes of searches ----

POLICY = choose_policy(Request(level="auto", lists=UserLists(frozenset({"Exp", "Tanh", "Conv"}))))
OUTCOME = Outcome({"MatMul_0": Settled("high", Reason("optimizer"))}, ("MatMul_0",), shown=True, excess=0.5)


def outcomes(policy=POLICY, samples=SAMPLES, words=("True",)) -> Outcomes:
    return Outcomes(amp.load(onnx.parser.parse_model(TEXT)), samples, policy, words)


def test_the_outcome_of_an_equal_question_is_found(cache):
    assert outcomes().find() is None
    outcomes().keep(OUTCOME)
    assert outcomes().find() == OUTCOME


OTHER_QUESTIONS = {
    "limits": {"policy": dataclasses.replace(POLICY, limits=Limits(0.5))},
    "objective": {"policy": dataclasses.replace(POLICY, objective="time")},
    "device": {"policy": dataclasses.replace(POLICY, device="T4")},
    "lists": {"policy": choose_policy(Request(level="auto", lists=UserLists(frozenset({"Exp", "Tanh"}))))},
    "inputs": {"policy": dataclasses.replace(POLICY, low_io=frozenset({"x"}))},
    "settled": {"policy": dataclasses.replace(POLICY, settled=OUTCOME.settled)},
    "samples": {"samples": SAMPLES * 2},
    "words": {"words": ("False",)},
}


@pytest.mark.parametrize("other", OTHER_QUESTIONS.values(), ids=OTHER_QUESTIONS)
def test_the_outcome_of_another_question_is_not(cache, other):
    outcomes().keep(OUTCOME)
    assert outcomes(**other).find() is None


def test_what_runs_have_shown_is_no_part_of_the_question(cache):
    outcomes(dataclasses.replace(POLICY, evidence=EVIDENCE)).keep(OUTCOME)
    assert outcomes().find() == OUTCOME


def test_a_question_reads_the_same_in_every_process():
    code = (
        "from tests.verification.test_evidence_cache import POLICY\n"
        "from amp_transpiler.verification import evidence_cache\n"
        "print(evidence_cache.in_words(POLICY))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert "0x" not in answers.pop()


def test_a_damaged_outcome_is_made_anew(cache, caplog):
    outcomes().keep(OUTCOME)
    [file] = (cache.parent / "outcome").iterdir()
    file.write_bytes(b'{"settled": 3}')
    assert outcomes().find() is None
    assert "cannot be read" in caplog.text


def test_an_equal_question_is_one_conversion(cache, monkeypatch):
    """The outcome of the search is remembered where the whole answer is not: with data that can be read only once."""
    model = chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=array(4, 4, seed=2))
    conversions: list[str] = []
    measured = search.Conversions.measured

    def counted(self, policy, **options):
        conversions.append("one")
        return measured(self, policy, **options)

    monkeypatch.setattr(search.Conversions, "measured", counted)
    first = amp.transpile(model, inputs=iter([{"x": array(2, 4)}]), tolerance=1e-4, prefer="size")
    assert len(conversions) > 1
    conversions.clear()
    again = amp.transpile(model, inputs=iter([{"x": array(2, 4)}]), tolerance=1e-4, prefer="size")
    assert len(conversions) == 1
    assert again.decisions == first.decisions
    assert (again.verdict, again.repaired, again.casts) == (first.verdict, first.repaired, first.casts)
