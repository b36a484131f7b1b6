"""The tests of files flush what they write, as users do."""

from __future__ import annotations

import os

import pytest

from tests import unflushed


@pytest.fixture(autouse=True)
def _flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", unflushed.FLUSH)
