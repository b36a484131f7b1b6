"""The counts of inference: what they call lost or too much, and that ONNX Runtime fuses every form that ours keeps."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import onnx
import pytest

import amp_transpiler as amp
import bench_inference
from bench_inference import FORMS, HEADER, Limits, limits_of, lost, markdown, row
from tests.fusions import FUSIONS, model
from tests.support import parse


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"Gelu": 2}, {"Gelu": 2}, {}),
        ({"Gelu": 2}, {"Gelu": 1}, {"GELU": 1}),
        ({"Gelu": 2}, {"BiasGelu": 2}, {}),
        ({"LayerNormalization": 3}, {"LayerNormalization": 1, "SkipLayerNormalization": 2}, {}),
        ({"LayerNormalization": 3}, {"SimplifiedLayerNormalization": 3}, {"layer normalisation": 3}),
        ({}, {"BiasSoftmax": 1}, {}),
        ({"Conv": 3}, {}, {}),
        ({"FusedMatMul": 3, "BiasSoftmax": 1}, {"Attention": 1}, {"product": 1}),
        ({"FusedMatMul": 2, "Attention": 1}, {"Attention": 1}, {"product": 2}),
    ],
)
def test_a_fused_operator_that_became_another_of_its_family_is_not_lost(before, after, expected):
    assert lost(before, after) == expected


@pytest.mark.parametrize(
    ("limits", "launches", "over"),
    [
        (Limits(converter=10, fp32=12), 10, 0),
        (Limits(converter=10, fp32=12), 11, 1),
        (Limits(converter=14, fp32=12), 13, 1),
        (Limits(converter=None, fp32=12), 13, 1),
        (Limits(converter=None, fp32=12), 5, 0),
    ],
)
def test_both_limits_hold(limits, launches, over):
    assert limits.over(launches) == over


def _counts(launches: int, **kinds: int) -> dict[str, Any]:
    return {"launches": launches, "kinds": kinds, "fused": {"Gelu": 1}}


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.onnx"
    onnx.save(parse("(float[2] x, int64[1] i) => (float[2] y) { z = Add (x, w) y = Neg (z) }", w=[1.0, 2.0]), path)
    return path


def test_a_row_has_every_form(file):
    counts = {form: _counts(10, cast=2) for form in FORMS} | {"converter": {"error": "invalid"}, "auto": _counts(13)}
    assert row("name", file, counts) == ["name", "10 (2)", "13 (0)", "10 (2)", "invalid", "none", "none", "1 / 0"]
    assert limits_of(file, counts) == Limits(None, 12)


def test_the_page_s_table_is_replaced_and_its_words_stay(tmp_path, monkeypatch):
    def table(word):
        return markdown([[word] * len(HEADER)])

    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{table('old')}\n\nafter\n")
    monkeypatch.setattr(bench_inference, "PAGE", page)
    bench_inference.write_page(table("new"))
    assert page.read_text() == f"before\n\n{table('new')}\n\nafter\n"


@pytest.mark.parametrize("arguments", [[], ["corpus", "--model", "m.onnx"]])
def test_it_wants_a_corpus_or_a_model(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_inference.py", *arguments])
    with pytest.raises(SystemExit):
        bench_inference.main()
    assert "give the folder of the corpus, or --model" in capsys.readouterr().err


COUNT_ALL = """
import json, pathlib, sys
import launches
paths = pathlib.Path(sys.argv[1]).glob("*.onnx")
print(json.dumps({path.stem: launches.count_model(str(path), None, {}) for path in paths}))
"""


@pytest.mark.slow
def test_the_cuda_provider_fuses_every_form_that_level_auto_keeps(counted, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for index, name in enumerate(FUSIONS):
        onnx.save(model(name), folder / f"{index}_fp32.onnx")
        for level in ("auto", "O2"):
            options = {
                "level": level,
                "verify": False,
                "prefer": "size",
                "fuse": "none",
            }  # our own fusions leave it nothing
            amp.transpile(model(name), folder / f"{index}_{level}.onnx", **options)
    counts = counted.program(COUNT_ALL, str(folder))
    for index, (name, fusion) in enumerate(FUSIONS.items()):
        before = counts[f"{index}_fp32"]
        for level in ("auto", "O2"):
            after = counts[f"{index}_{level}"]
            if "QuickGelu" in fusion.fused:  # rounds every step in float16, so it is kept from being fused
                assert "QuickGelu" not in after["fused"], f"{name} at {level}"
                continue
            assert set(fusion.fused) <= set(after["fused"]), f"{name} at {level}"
            assert not lost(before["fused"], after["fused"]), f"{name} at {level}"
            assert after["launches"] <= before["launches"] + 2, f"{name} at {level}"  # casts of x and y
