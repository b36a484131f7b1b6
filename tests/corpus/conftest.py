"""One test per model, or per batch of node cases, of the corpus; parts that are absent are skipped by name."""

from __future__ import annotations

import pathlib

import pytest

from tests.corpus.files import name_of, node_cases, real_models

_BATCH = 40  # node cases per test: few enough to share out, many enough for the tests to cost nothing themselves


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder: pathlib.Path | None = metafunc.config.getoption("--corpus")
    folder = None if folder is None else folder.resolve()
    if "model" in metafunc.fixturenames:
        models = real_models(folder)
        present = [pytest.param(path, id=name_of(path)) for path in models.present]
        absent = [_skipped(name, reason) for name, reason in models.absent.items()]
        metafunc.parametrize("model", present + absent)
    if "node_batch" in metafunc.fixturenames:
        cases = node_cases(folder)
        batches = [cases[start : start + _BATCH] for start in range(0, len(cases), _BATCH)]
        reason = "not in the corpus; scripts/fetch_corpus.py makes it"
        present = [pytest.param(batch, id=_span(batch)) for batch in batches]
        metafunc.parametrize("node_batch", present or [_skipped("onnx_backend/node", reason)])


def _skipped(name: str, reason: str) -> object:
    return pytest.param(None, id=name, marks=pytest.mark.skip(reason=f"{name}: {reason}"))


def _span(batch: list[pathlib.Path]) -> str:
    first, last = (path.name.removeprefix("test_") for path in (batch[0], batch[-1]))
    return f"{first}..{last}"
