"""Which tests need a newer package than the installed one: the rows of `newer_needed.txt`."""

import pathlib

import onnx
import onnxruntime
from packaging.version import Version

FILE = pathlib.Path(__file__).with_suffix(".txt")
INSTALLED = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def rows():
    """Return package, version, beginning of the names of tests, and what is newer there, of each row."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [tuple(part.strip() for part in line.split("|", 3)) for line in lines if line and not line.startswith("#")]


def needed_here(installed=INSTALLED):
    """Return the beginning of tests' names -> why they are skipped with the installed versions."""
    return {
        beginning: f"needs {package} {version} ({installed[package]} is installed): {what}"
        for package, version, beginning, what in rows()
        if Version(installed[package]) < Version(version)
    }
