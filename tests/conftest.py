"""The folder of real models that the corpus tests take, and what they tell about themselves at the end of a run."""

from __future__ import annotations

import pathlib

import pytest

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
    lines = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                lines += [f"{report.nodeid}: {value}" for name, value in report.user_properties if name == SUMMARY]
    if lines:
        terminalreporter.section("corpus", sep="-")
        terminalreporter.write_line("\n".join(sorted(lines)))
