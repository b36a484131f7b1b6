"""Which tests run with the oldest versions, and which need newer ones or just one: the rows of `oldest.toml`."""

import importlib.metadata
import pathlib
import tomllib

from packaging.version import Version

from amp_transpiler import wheels
from amp_transpiler.errors import EnvironmentProblem

TABLE = tomllib.loads(pathlib.Path(__file__).with_name("oldest.toml").read_text(encoding="utf-8"))


def row_of(path, runs=TABLE["runs"]):
    """Return the row of a file, or of its folder; None if it does not run with the oldest versions."""
    return next((runs[name] for name in (path, *map(str, pathlib.PurePosixPath(path).parents)) if name in runs), None)


def is_wanted(path, *, folder, runs=TABLE["runs"]):
    """Whether a file has a row, or a folder holds one that has."""
    return row_of(path, runs) is not None or (folder and any(name.startswith(f"{path}/") for name in runs))


def installed():
    """Return the versions of what rows are about."""
    return {"onnx": importlib.metadata.version("onnx"), "onnxruntime": wheels.installed_version() or "0"}


def needed(versions):
    """Return the beginning of tests' names -> why they are skipped with these versions."""
    newer = [(row, row["from"]) for row in TABLE["newer"] if Version(versions[row["package"]]) < Version(row["from"])]
    exact = [
        (row, row["release"]) for row in TABLE["exact"] if not _is_release(versions[row["package"]], row["release"])
    ]
    return {
        beginning: f"needs {row['package']} {version} ({versions[row['package']]} is installed): {row['why']}"
        for row, version in [*newer, *exact]
        for beginning in row["tests"]
    }


def _is_release(version, release):
    return Version(version).release[:2] == Version(release).release


def why_no_training():
    """Return why tests of training are skipped here; None if they run."""
    try:
        wheels.require_for_training()
    except EnvironmentProblem as problem:
        return str(problem)
    return None
