"""The oldest versions in scripts/oldest.txt are the lower bounds that pyproject.toml states; other Pythons."""

import pathlib
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from amp_transpiler import wheels

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Only the extras cpu and cuda bring ONNX Runtime.
RUNTIMES = {"onnxruntime": "cpu", "onnxruntime-gpu": "cuda"}
STATED = [
    *PROJECT["dependencies"],
    *(line for extra in RUNTIMES.values() for line in PROJECT["optional-dependencies"][extra]),
]
REQUIREMENTS = {found.name: found for found in map(Requirement, STATED)}
LINES = [line for line in (ROOT / "scripts/oldest.txt").read_text().splitlines() if not line.startswith("#")]
OLDEST = dict(line.split("==") for line in LINES)


def test_each_dependency_has_an_oldest_version():
    assert OLDEST.keys() == REQUIREMENTS.keys()


def test_no_onnx_runtime_comes_with_the_package_alone():
    assert not [line for line in PROJECT["dependencies"] if "onnxruntime" in line]


@pytest.mark.parametrize("wheel", RUNTIMES)
def test_an_extra_brings_onnx_runtime_from_the_release_that_is_accepted(wheel):
    [requirement] = map(Requirement, PROJECT["optional-dependencies"][RUNTIMES[wheel]])
    assert requirement.name == wheel
    assert wheels.OLDEST in {one.version for one in requirement.specifier}
    assert requirement.marker is None


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
