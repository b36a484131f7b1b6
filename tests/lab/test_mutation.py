"""lab/mutate: its tables fit the tree, its rules leave out what they say, its score counts right."""

import os
import subprocess
import sys
import textwrap

import pytest

from mutation.record import Fate, Record
from mutation.report import score, survivors, table
from mutation.rules import excluded
from mutation.tables import ROOT, Equivalent, Module, equivalents, modules, stale


def test_modules_and_their_tests_are_there():
    for module in modules():
        for path in (module.path, *module.tests, *module.wider):
            assert (ROOT / path).exists(), f"{module.name}: {path}"


def test_equivalent_mutants_have_reasons():
    names = {module.name for module in modules()}
    for entry in equivalents():
        assert entry.module in names
        assert entry.mutated != entry.line
        assert entry.reason


def test_an_equivalent_mutant_of_a_line_that_is_gone_is_told():
    here = Equivalent(
        "precision/quantized_islands", "from __future__ import annotations", "pass", "a line that every module has"
    )
    gone = Equivalent("precision/quantized_islands", "import nothing", "pass", "a line that no module has")
    assert stale([here, gone]) == [gone]


@pytest.mark.parametrize(
    ("source", "left_out"),
    [
        ("x: int | None = 1 + 2", ["int | None"]),
        ("def f(x: int | None) -> int | str:\n    return x + 1", ["int | None", "int | str"]),
        ("x = cast(int | None, y + 1)", ["int | None"]),
        ("_log.info('%d', n + 1)\nf(n + 1)", ["_log.info('%d', n + 1)"]),
        ("raise ValueError(f'{n + 1}')", ["f'{n + 1}'"]),
        ("if TYPE_CHECKING:\n    import x", ["if TYPE_CHECKING:\n    import x"]),
        ("@functools.cache\ndef f():\n    return 1 + 2", ["@functools.cache"]),
        ("@dataclasses.dataclass(frozen=True, eq=False)\nclass C:\n    pass", ["frozen=True"]),
        ("zip(a, b, strict=True)", ["strict=True"]),
        ("é = ('é', zip(a, strict=True))", ["strict=True"]),
    ],
)
def test_what_the_rules_leave_out(source, left_out):
    lines = source.splitlines()

    def text(start, end):
        if start[0] == end[0]:
            return lines[start[0] - 1][start[1] : end[1]]
        return "\n".join([lines[start[0] - 1][start[1] :], *lines[start[0] : end[0] - 1], lines[end[0] - 1][: end[1]]])

    assert [text(start, end) for start, end in excluded(source)] == left_out


def test_score_and_table():
    outcomes = ["killed"] * 6 + ["timeout", "survived", "equivalent"]
    fates = [Fate("m", str(i), "f", "a", "b", "AddNot", outcome) for i, outcome in enumerate(outcomes)]
    assert score(fates) == "88%"
    assert "| m | 3/4 | 6 | 1 | 1 | 1 | 88% | 50 |" in table([(Module("m", (), before="3/4"), fates, "50")])
    assert survivors([(Module("m", ()), fates, "50")], 11).endswith(
        textwrap.dedent("""
            seed = 11

            [[mutant]]
            module = "m"
            function = "f"
            line = "a"
            mutated = "b"
        """).lstrip()
    )


def test_the_record_keeps_the_last_outcome(tmp_path):
    for outcome in ("survived", "killed"):
        Record(tmp_path).add(Fate("m", "n", "f", "a", "b", "AddNot", outcome))
    assert Record(tmp_path).get("m", "n").outcome == "killed"


def test_a_worker_whose_tests_would_import_another_tree_does_not_start(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "mutation.worker"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert "not from the mutated copy" in told.stderr
    assert told.stdout == ""
