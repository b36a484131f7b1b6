"""The report as users have it is the record and three methods; the record imports none of the forms."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

import amp_transpiler as amp
from amp_transpiler.report.record import ReportRecord

REPORT = amp.Report("m.onnx", "O1", "float16", "cuda", outputs={"y": 0}, notes=("as it is",))


def test_every_field_is_described_where_users_look():
    described = amp.Report.__doc__.partition("Attributes:")[2].replace(
        "low_nodes, high_nodes:", "low_nodes: high_nodes:"
    )
    fields = [field.name for field in dataclasses.fields(amp.Report)]
    assert [name for name in fields if f" {name}: " not in described] == []
    assert fields == [field.name for field in dataclasses.fields(ReportRecord)]


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, dataclasses.replace, lambda report: pickle.loads(pickle.dumps(report))],
    ids=["copy", "deepcopy", "replace", "pickle"],
)
def test_a_copy_is_equal_and_a_report(again):
    result = again(REPORT)
    assert type(result) is amp.Report
    assert result == REPORT
    assert (
        repr(result)
        == repr(REPORT)
        == "<Report of m.onnx, level O1: 0 of 0 nodes float16, 0 float32, 0 casts; not checked>"
    )


def test_only_fields_can_be_set():
    with pytest.raises(AttributeError, match="no attribute 'verdicts'"):
        amp.Report("m.onnx", "O1", "float16", "cuda").verdicts = "passed"


def test_the_forms_are_imported_when_one_is_asked_for(tmp_path):
    code = """
import sys
from amp_transpiler import Report
forms = ("as_html", "recipe", "table", "as_json", "sections")
loaded = lambda: [name for name in forms if f"amp_transpiler.report.{name}" in sys.modules]
assert loaded() == [], loaded()
Report("m.onnx", "O1", "float16", "cuda").save_recipe(sys.argv[1])
assert "recipe" in loaded() and "as_html" not in loaded(), loaded()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "r.toml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
