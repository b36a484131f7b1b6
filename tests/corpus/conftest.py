"""One test per model, or per batch of node cases, of the corpus; parts that are absent are skipped by name."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from amp_transpiler.verification import device_draws
from tests.corpus import verdicts
from tests.corpus.files import name_of, node_cases, real_models
from tests.corpus.limits import FILE, PROPERTY, record

_BATCH = 40  # node cases per test: few enough to share out, many enough for the tests to cost nothing themselves


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known where `tests/corpus` is named on the command line, which is how the table is recorded."""
    parser.addoption(
        "--record-limits",
        nargs="?",
        const="better",
        choices=["better", "forced"],
        help="write what the corpus tests measure into tests/corpus/limits.json: what is new or better, or all of it",
    )
    parser.addoption(
        "--verdicts",
        metavar="FILE",
        type=pathlib.Path,
        help="write a page that counts the verdicts and those the oracle contradicts: see lab/corpus_verdicts.py",
    )


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what leaves two draws of the emulated device: for levels that keep no limit, where more change nothing."""
    return functools.partial(monkeypatch.setattr, device_draws, "DRAWS", 2)


@pytest.fixture(scope="session")
def recording(request: pytest.FixtureRequest) -> bool:
    """Whether the table of limits is being written, so that nothing is held to it."""
    return request.config.getoption("--record-limits", default=None) is not None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    wanted, page = (config.getoption(option, default=None) for option in ("--record-limits", "--verdicts"))
    if wanted:
        measured = _properties(terminalreporter, PROPERTY)
        changed = record(measured, forced=wanted == "forced")
        terminalreporter.write_line(f"{changed} of {len(measured)} entries written to {FILE.name}")
    if page:
        page.write_text(verdicts.page(_properties(terminalreporter, verdicts.PROPERTY)), encoding="utf-8")
        terminalreporter.write_line(f"{page} written")


def _properties(terminalreporter: pytest.TerminalReporter, wanted: str) -> list[Any]:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    called = [report for report in reports if getattr(report, "when", None) == "call"]
    return [value for report in called for name, value in report.user_properties if name == wanted]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder: pathlib.Path | None = metafunc.config.getoption("--corpus")
    if "model" in metafunc.fixturenames:
        models = real_models(folder)
        present = [pytest.param(path, id=name_of(path)) for path in models.present]
        absent = [_skipped(name, reason) for name, reason in models.absent.items()]
        metafunc.parametrize("model", present + absent)
    if "node_batch" in metafunc.fixturenames:
        cases = node_cases(folder)
        batches = [cases[start : start + _BATCH] for start in range(0, len(cases), _BATCH)]
        reason = "not in the corpus; lab/fetch_corpus.py makes it"
        present = [pytest.param(batch, id=_span(batch)) for batch in batches]
        metafunc.parametrize("node_batch", present or [_skipped("onnx_backend/node", reason)])


def _skipped(name: str, reason: str) -> object:
    return pytest.param(None, id=name, marks=pytest.mark.skip(reason=f"{name}: {reason}"))


def _span(batch: list[pathlib.Path]) -> str:
    first, last = (path.name.removeprefix("test_") for path in (batch[0], batch[-1]))
    return f"{first}..{last}"
