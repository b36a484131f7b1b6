"""Each stage states its own facts, once, and only `assembly.py` makes a report of them."""

import ast
import dataclasses
import pathlib
import re

import pytest

import amp_transpiler as amp
from amp_transpiler.pipeline import STAGES
from amp_transpiler.report import facts as records
from amp_transpiler.report.assembly import assemble, renamed
from amp_transpiler.report.facts import (
    Description,
    Facts,
    FileCheck,
    Findings,
    Optimization,
    Prediction,
    SeenNodes,
    Task,
)
from amp_transpiler.report.record import DecisionRow, PredictedTimes
from amp_transpiler.report.verdict import Judgement, Verdict

PACKAGE = pathlib.Path(amp.__file__).parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
CLASSES = {"Report", "ReportRecord"}

# Functions that may set a field of a report, and why.
MAY_SET = {
    "report/record.py __post_init__": "the default of `asked` depends on `level`",
    "report/record.py known_times": "times are predicted when they are first asked for, and remembered",
    "report/record.py priced_decisions": "likewise the times of nodes",
}
# Files that may make a report.
MAY_MAKE = {"report/assembly.py"}


def settings_of_reports(source):
    """Yield the function, empty at the top, and the field of each assignment to a field of a report."""
    for function, names, node in scoped(ast.parse(source), "", {"report"}):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and is_report(node.value, names):
            yield function, node.attr
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).strip("_").endswith("setattr")
            and any(is_report(argument, names) for argument in node.args[:1])
        ):
            yield function, "setattr"


def scoped(node, function, names):
    """Yield all nodes, each with the function that it is in, and the names of reports there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            typed = {argument.arg for argument in arguments if of_report_type(argument.annotation)}
            yield from scoped(child, child.name, names | typed)
        elif isinstance(child, ast.ClassDef) and child.name in CLASSES:
            yield from scoped(child, function, names | {"self"})
        elif isinstance(child, ast.ClassDef):
            yield from scoped(child, function, names - {"self"})
        else:
            yield function, names, child
            yield from scoped(child, function, names)


def of_report_type(annotation):
    return annotation is not None and bool(CLASSES & set(re.findall(r"\w+", ast.unparse(annotation))))


def is_report(node, names):
    return (isinstance(node, ast.Name) and node.id in names) or (
        isinstance(node, ast.Attribute) and node.attr == "report"
    )


def test_nobody_sets_a_field_of_a_report():
    setting = {
        f"{path.relative_to(PACKAGE)} {function}".strip()
        for path, source in SOURCES.items()
        if "report" in source.lower()
        for function, _ in settings_of_reports(source)
    }
    assert setting == set(MAY_SET)


def test_one_module_makes_reports():
    making = {
        str(path.relative_to(PACKAGE))
        for path, source in SOURCES.items()
        if "Report" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLASSES
    }
    assert making == MAY_MAKE


@pytest.mark.parametrize(
    "source",
    [
        "report.notes = ()",
        "report.notes += ('more',)",
        "def f(job):\n    job.report.seconds, other = 1.0, 2.0",
        "def f(told: Report | None):\n    told.verdict = 'failed'",
        "def f(told: ReportRecord):\n    def g():\n        told.casts = 1",
        "class ReportRecord:\n    def f(self):\n        self.casts = 1",
        "for report.casts in range(3):\n    pass",
        "setattr(report, 'casts', 1)",
        "object.__setattr__(job.report, 'casts', 1)",
    ],
)
def test_an_assignment_is_seen(source):
    assert len(list(settings_of_reports(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "self.report = report",
        "report = None",
        "print(report.casts)",
        "class Other:\n    def f(self):\n        self.a = 1",
    ],
)
def test_nothing_else_is_seen(source):
    assert list(settings_of_reports(source)) == []


# ---- facts by stage ----


def stages_in_words():
    """Return field of `Facts` -> the stages that set it, as its docstring says."""
    entries = re.findall(r"^        (\w+): (.*?)(?=^        \w+: |\Z)", Facts.__doc__, re.DOTALL | re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", text) for name, text in entries}


def stages_in_code():
    """Return field of `Facts` -> the functions that assign it; `task` is there from the start."""
    by_field = {"task": ["load_source"]}
    for path, source in SOURCES.items():
        if ".facts" not in source and " facts" not in source:
            continue
        for function, _, node in scoped(ast.parse(source), "", set()):
            is_set = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
            if is_set and ast.unparse(node.value).rpartition(".")[2] == "facts":
                assert path.name in ("stages.py", "writing.py"), f"{path}: only stages state facts"
                by_field.setdefault(node.attr, []).append(function)
    return by_field


def test_a_stage_sets_the_facts_that_it_is_said_to():
    said = stages_in_words()
    assert list(said) == [field.name for field in dataclasses.fields(Facts)]
    assert {name: set(stages) for name, stages in said.items()} == {
        name: set(stages) for name, stages in stages_in_code().items()
    }


def test_facts_are_in_the_order_of_the_stages():
    order = [stage.__name__ for stage in STAGES]
    first = [order.index(stages[0]) for stages in stages_in_words().values()]
    assert first == sorted(first)


def test_what_a_stage_states_does_not_change():
    classes = [getattr(records, name) for name in records.__all__ if name != "Facts"]
    assert [cls.__name__ for cls in classes if not cls.__dataclass_params__.frozen] == []


# ---- the report of facts ----

ROWS = (DecisionRow("a", "Relu", "float16", "why"), DecisionRow("b", "Exp", "float32", "why"))


def told(name):
    return Findings(notes=(f"note of {name}",), warnings=(f"warning of {name}",))


def facts(**described):
    """Facts in which every stage has a note, and a warning if it can."""
    stated = Facts(
        Task("m.onnx", "auto", "float16", "cuda", opset=17, weight_bytes=80, file_bytes=100, notes=("note of task",)),
        Optimization({"FusedMatMul": 2}, told("optimization")),
        told("preparation"),
        judgement=Findings(Judgement(Verdict.VERIFIED), *dataclasses.astuple(told("judgement"))[1:3]),
        replay=Findings(warnings=("warning of replay",)),
        seen=SeenNodes(ROWS[::-1], ("note of seen",)),
        file_check=FileCheck(("onnx.checker",), findings=told("file")),
        written_bytes=60,
    )
    stated.description = Description(None, ROWS, opset=18, weight_bytes=40, notes=("note of program",), **described)
    return stated


def test_notes_and_warnings_are_in_the_order_of_the_stages():
    report = assemble(facts(), None)
    order = ["program", "task", "optimization", "preparation", "judgement", "seen", "file"]
    assert [note.removeprefix("note of ") for note in report.notes] == order
    order = ["optimization", "preparation", "judgement", "replay", "file"]
    assert [warning.removeprefix("warning of ") for warning in report.warnings] == order


def test_a_description_may_make_earlier_notes_and_warnings_void():
    report = assemble(facts(replaces_notes=True, moot_warnings=("warning of preparation",)), None)
    assert report.notes == ("note of program", "note of seen", "note of file")
    assert "warning of preparation" not in report.warnings
    assert len(report.warnings) == 4


def test_a_report_has_what_the_stages_state():
    report = assemble(facts(low_nodes=1, high_nodes=1), pathlib.Path("out.onnx"))
    assert report.verdict == "verified"
    assert report.decisions == ROWS[::-1], "the latest stage has the last word"
    assert (report.nodes, report.low_nodes, report.high_nodes) == (2, 1, 1)
    assert (report.opset, report.weight_bytes, report.file_bytes) == ((17, 18), (80, 40), (100, 60))
    assert (report.fused, report.checks, report.destination) == ({"FusedMatMul": 2}, ("onnx.checker",), "out.onnx")
    assert (report.seconds, report.phases) == (0.0, {})


@pytest.mark.parametrize("later", [True, False], ids=["predicted when asked for", "predicted"])
def test_the_file_of_the_source_has_its_sizes_and_times(later):
    times = PredictedTimes(fp32=2.0, result=1.0, fp32_in_graph=1.5, result_in_graph=0.5)
    stated = facts()
    stated.prediction = Prediction(ROWS, "H100", (lambda: times) if later else times)
    assert assemble(stated, None).predicted_ms == (2.0, 1.0)
    stated.is_source_file = True
    report = assemble(stated, None)
    assert (report.opset, report.weight_bytes) == ((17, 17), (80, 80))
    assert (report.predicted_ms, report.predicted_graph_ms) == ((2.0, 2.0), (1.5, 1.5))


def test_a_verdict_of_the_file_or_of_a_copy_counts_more_than_that_of_the_comparison():
    copied = facts(verdict=Judgement(Verdict.NOT_CHECKED, {"why": "a copy"}))
    assert assemble(copied, None).verdict == "not checked: a copy"
    copied.file_check = FileCheck(findings=Findings(Judgement(Verdict.FAILED)))
    assert assemble(copied, None).verdict_word == "failed"


def test_later_findings_are_added_and_count_more():
    first = Findings(Judgement(Verdict.VERIFIED), ("a",), ("b",), "old")
    assert first.then(Findings(notes=("c",))) == Findings(first.verdict, ("a", "c"), ("b",), "old")
    last = Findings(Judgement(Verdict.FAILED), warnings=("d",), failure="new")
    assert first.then(last) == Findings(last.verdict, ("a",), ("b", "d"), "new")


def test_a_file_is_renamed_wherever_a_report_names_it():
    before = amp.Report(
        "/tmp/x/m.onnx", "auto", "float16", "cuda", destination="/tmp/x/out", verdict="failed: /tmp/x/m.onnx is bad",
        notes=("see /tmp/x/m.onnx",), warnings=("mind /tmp/x/m.onnx",),
    )  # fmt: skip
    after = renamed(before, "/tmp/x/", "")
    assert (after.source, after.destination, after.verdict) == ("m.onnx", "out", "failed: m.onnx is bad")
    assert (after.notes, after.warnings) == (("see m.onnx",), ("mind m.onnx",))
    assert before.source == "/tmp/x/m.onnx"
    assert renamed(dataclasses.replace(before, destination=None), "/tmp/x/", "").destination is None
