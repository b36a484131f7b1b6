"""The oldest versions in scripts/oldest.txt are the lower bounds that pyproject.toml states."""

import pathlib
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
