"""A verdict is a word with named clauses; reports hold its sentence, which still knows them."""

import copy
import json
import pickle

import pytest

import amp_transpiler as amp
from amp_transpiler.report.verdict import Judgement, Verdict, VerdictText, judgement_of

BASIS = {"errors": "within 1% of float32", "unmeasured": "never measured on a device: the kernels of Mish"}
ESTIMATED = Judgement(Verdict.ESTIMATED, BASIS)
SENTENCE = "estimated: within 1% of float32; never measured on a device: the kernels of Mish"


def test_clauses_stand_in_order():
    assert str(ESTIMATED) == SENTENCE
    assert str(Judgement(Verdict.NOT_CHECKED)) == "not checked"


def test_a_judgement_is_changed_by_part():
    measured = ESTIMATED.with_part("errors", "within 2% of float32, measured").without("unmeasured")
    assert str(measured.with_word(Verdict.VERIFIED)) == "verified: within 2% of float32, measured"
    assert str(measured.with_part("training", "50 training steps")).endswith("measured; 50 training steps")
    renamed = Judgement(Verdict.FAILED, {"why": "/tmp/x.onnx is broken"}).renamed("/tmp/x.onnx", "standard input")
    assert str(renamed) == "failed: standard input is broken"
    assert str(ESTIMATED) == SENTENCE, "it is never changed itself"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_the_sentence_is_a_text_that_knows_its_judgement(copied):
    text = copied(ESTIMATED.as_text())
    assert (text, repr(text), json.dumps(text)) == (SENTENCE, repr(SENTENCE), json.dumps(SENTENCE))
    assert judgement_of(text) == ESTIMATED


TEXTS = {
    # what a user, or a file, has for a verdict: what is known of it
    "verified": Judgement(Verdict.VERIFIED),
    Verdict.NOT_CHECKED: Judgement(Verdict.NOT_CHECKED),
    "structure only: no inputs: none": Judgement(Verdict.STRUCTURE_ONLY, {"why": "no inputs: none"}),
    VerdictText("failed: y is inf"): Judgement(Verdict.FAILED, {"why": "y is inf"}),
}


@pytest.mark.parametrize("text", TEXTS)
def test_of_another_text_only_the_word_is_known(text):
    assert judgement_of(text) == TEXTS[text]
    assert str(judgement_of(text)) == text
    assert amp.Report("m.onnx", "O1", "float16", "cuda", verdict=text).verdict_word is TEXTS[text].word


def test_a_text_without_a_word_is_no_verdict():
    with pytest.raises(ValueError, match="passed"):
        judgement_of("passed: all")
