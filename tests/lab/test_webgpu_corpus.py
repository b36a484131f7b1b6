"""The rows of the corpus on the WebGPU provider, and the page that is made of them."""

import json
import pathlib

import pytest

import webgpu_corpus as lab

HELD = {"model": "a", "source": 1e-6, "provider": 0.003, "stated": 0.002, "low": 1, "nodes": 2, "on_cpu": 0}
HELD |= {"verdict": "verified"}
ROWS = pathlib.Path(lab.ROWS)


def test_the_page_is_that_of_the_rows():
    assert lab.PAGE.read_text(encoding="utf-8") == lab.page(list(lab.read_rows().values()))


def test_every_verdict_of_the_corpus_holds():
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 20
    assert [row["model"] for row in rows if lab.is_false(row)] == []


@pytest.mark.parametrize(
    ("change", "is_false"),
    [
        ({}, False),
        ({"provider": 0.0041}, True),
        ({"provider": "infinite"}, True),
        ({"provider": "the provider refuses it"}, True),
        ({"source": 0.1, "provider": 0.2}, False),  # float32 itself is that far off there
        ({"source": "it is refused in float32", "provider": "infinite"}, False),
    ],
)
def test_a_verdict_is_false_beyond_twice_what_it_states(change, is_false):
    assert lab.is_false({**HELD, **change}) is is_false


def test_a_model_that_is_refused_has_a_line():
    assert (
        lab.line({"model": "m", "refused": "no samples fit"}) == "| m | - | - | refused | - | - | - | no samples fit |"
    )
