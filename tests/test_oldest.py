"""The oldest versions in scripts/oldest.txt are the lower bounds that pyproject.toml states; other Pythons."""

import pathlib
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
REQUIREMENTS = {found.name: found for found in map(Requirement, DEPENDENCIES)}
LINES = [line for line in (ROOT / "scripts/oldest.txt").read_text().splitlines() if not line.startswith("#")]
OLDEST = dict(line.split("==") for line in LINES)


def test_each_dependency_has_an_oldest_version():
    assert OLDEST.keys() == REQUIREMENTS.keys()


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_the_oldest_version_is_the_lower_bound(name):
    bounds = [Version(one.version).release for one in REQUIREMENTS[name].specifier if one.operator == ">="]
    assert [Version(OLDEST[name]).release[: len(bound)] for bound in bounds] == bounds


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--python", "3.99"], 1, "there is no Python 3.99 here"),
        (["--slow"], 2, "unknown option --slow"),
        (["--slow"], 2, "--pretend-device"),
    ],
)
def test_a_python_that_cannot_be_had_is_named(arguments, status, said):
    done = subprocess.run([ROOT / "scripts/test", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stderr
