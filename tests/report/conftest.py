"""Fixtures of the tests of pages."""

from tests.browser import axe, browser

__all__ = ["axe", "browser"]
