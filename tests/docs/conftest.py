"""The documentation site, built once."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.browser import axe, browser

__all__ = ["axe", "browser", "site"]

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site as scripts/docs does, with the Python at hand; return its folder."""
    for module in ("material", "mkdocstrings"):
        pytest.importorskip(module, reason="needs mkdocs-material and mkdocstrings: pip install 'amp-transpiler[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "WARNING" in line or "contains a link" in line] == []
    return folder
