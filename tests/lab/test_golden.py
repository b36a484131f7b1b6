"""Every way of converting the small models decides and writes what it did before.

A change that is meant to change decisions makes the table anew:

    python lab/golden_dump.py dump OUT.jsonl models && python lab/golden_dump.py summary OUT.jsonl
"""

import pathlib

import pytest

from golden.dump import records_of
from golden.summary import COLUMNS, summary_rows, written_with

ROOT = pathlib.Path(__file__).parents[2]
HEADER, *TABLE = pathlib.Path(__file__).with_name("golden_small_models.txt").read_text(encoding="utf-8").splitlines()
ROWS = [tuple(line.split()) for line in TABLE]
MODELS = sorted({row[0] for row in ROWS[1:]})


def test_the_table_has_every_model_and_column():
    assert ROWS[0] == COLUMNS
    models = [path for path in sorted((ROOT / "models").glob("*.onnx")) if ".fp16" not in path.suffixes]  # the demo's
    assert [f"models/{path.name}" for path in models] == MODELS


@pytest.mark.parametrize("model", MODELS)
def test_decisions_and_files_are_as_before(model, monkeypatch):
    monkeypatch.chdir(ROOT)  # a dump names a model by its path
    summary = summary_rows(records_of(pathlib.Path(model)))
    expected = [row for row in ROWS[1:] if row[0] == model]
    assert [row[:-1] for row in summary] == [row[:-1] for row in expected]
    if f"# written with {written_with()}" == HEADER:  # other versions may write other bytes for the same model
        assert [row[-1] for row in summary] == [row[-1] for row in expected]
