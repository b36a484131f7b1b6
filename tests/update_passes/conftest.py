"""Fixtures of the tests of passes over training programs."""

from tests.passes.conftest import run

__all__ = ["run"]
