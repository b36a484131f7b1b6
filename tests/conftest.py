"""The folder of real models that the corpus tests take, and what they tell about themselves at the end of a run."""

from __future__ import annotations

import pathlib

import pytest

from tests.support import NEEDS_ONNX

SUMMARY = "summary"  # a user property of a test under this name is printed at the end of the run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--corpus",
        metavar="FOLDER",
        type=pathlib.Path,
        help="folder of real models, made by scripts/fetch_corpus.py and scripts/export_corpus.py",
    )


@pytest.fixture(scope="session")
def corpus(request: pytest.FixtureRequest) -> pathlib.Path:
    """The corpus folder; tests that ask for it are skipped without one."""
    folder = request.config.getoption("--corpus")
    if folder is None:
        pytest.skip("no corpus: make one with scripts/fetch_corpus.py FOLDER, then give --corpus FOLDER")
    if not folder.is_dir():
        pytest.skip(f"no corpus: {folder} is no folder")
    return folder.resolve()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    told = [
        f"{report.nodeid}: {value}"
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == SUMMARY
    ]
    _section(terminalreporter, "corpus", told)
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if isinstance(r.longrepr, tuple)]
    reasons = [(report.nodeid, report.longrepr[2].removeprefix("Skipped: ")) for report in skipped]
    _section(terminalreporter, "skipped for the installed onnx", [f"{i}: {r}" for i, r in reasons if NEEDS_ONNX in r])


def _section(terminalreporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if lines:
        terminalreporter.section(title, sep="-")
        terminalreporter.write_line("\n".join(sorted(lines)))
