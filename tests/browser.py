"""A browser for tests of pages, and axe, which looks for what keeps people from using them.

Needs the extra `browser` and Chromium; axe (npm's `axe-core`) is looked for in the folder AXE_CORE, or got by npm.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

__all__ = ["axe", "browser"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install 'amp-transpiler[browser]'"
    )
    with playwright.sync_playwright() as driver:
        # Root has no sandbox, and the page is ours.
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    folder = pathlib.Path(os.environ.get("AXE_CORE", tmp_path_factory.mktemp("axe") / "node_modules" / "axe-core"))
    if not folder.is_dir():
        if shutil.which("npm") is None:
            pytest.skip("needs axe-core: set AXE_CORE to its folder, or install npm")
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder.parents[1], "axe-core"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"needs axe-core, and npm does not get it: {done.stderr[-200:]}")
    return (folder / "axe.min.js").read_text(encoding="utf-8")
