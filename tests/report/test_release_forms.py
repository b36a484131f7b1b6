"""What changes between two releases, as text and as a page."""

import json

import pytest
from rich.console import Console

from amp_transpiler.report.as_json import dump, plain
from amp_transpiler.report.release_page import release_page
from amp_transpiler.report.release_text import answer, release_text
from tests.report.release_differences import CASES, TABLES


def printed(difference, width=100):
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(release_text(difference))
    return capture.get()


@pytest.mark.parametrize("case", CASES)
def test_the_first_sentence_is_the_answer(case):
    difference, words = CASES[case]
    assert words in answer(difference)
    assert " ".join(printed(difference).split()).startswith(" ".join(answer(difference).split()[:6]))


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_whole_and_safe(case):
    page = release_page(CASES[case][0])
    assert page.startswith("<!doctype html>")
    assert "<script>alert" not in page
    assert json.loads(dump(plain(CASES[case][0])))["old"] == "1.24"


def test_everything_is_shown():
    text = " ".join(printed(TABLES).split())
    for words in (
        "/stem/Pad Pad - cpu cuda",
        "loop/body",
        "3 in 1.24, 1 in 1.31; only in 1.24: a, b, c; only in 1.31: n",
        "a session crashes",
        "reads opsets up to 22",
        "ArgMax float32 float16 no kernel",
        "no such node",
        "Nothing ran: no interpreters were named that hold the releases.",
        "note: the tables of 1.31 decide",
        "the low model is a conversion for 1.24",
    ):
        assert words in text, words


def test_runs_are_shown():
    text = " ".join(printed(CASES["rounding"][0]).split())
    assert "The float32 model in 1.24.4 and 1.31.1, CPUExecutionProvider, 2 samples" in text
    assert "com.microsoft::Gelu 0 12" in text
    assert "a, b, c, d and 1 more" in text
    assert "and 2 more (--json and --report have them all)" in text
    assert "without optimizations by rounding /up Resize" in text
    assert "with optimizations beyond rounding /up2 Resize infinite" in " ".join(
        printed(CASES["another result"][0]).split()
    )


def test_what_a_release_says_is_shown():
    assert "1.31.1 does not load it: Fail: no kernel" in printed(CASES["a refusal"][0])
