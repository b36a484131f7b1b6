"""The oldest versions in scripts/oldest.txt are the lower bounds that pyproject.toml states; what runs with them."""

import os
import pathlib
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import fresh_environments
from amp_transpiler import wheels
from tests import oldest_cases

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Only the extras cpu and cuda bring ONNX Runtime.
RUNTIMES = {"onnxruntime": "cpu", "onnxruntime-gpu": "cuda"}
STATED = [
    *PROJECT["dependencies"],
    *(line for extra in RUNTIMES.values() for line in PROJECT["optional-dependencies"][extra]),
]
REQUIREMENTS = {stated.name: stated for stated in map(Requirement, STATED)}
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
    assert wheels.OLDEST in {specifier.version for specifier in requirement.specifier}
    assert requirement.marker is None


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_the_oldest_version_is_the_lower_bound(name):
    bounds = [
        Version(specifier.version).release for specifier in REQUIREMENTS[name].specifier if specifier.operator == ">="
    ]
    assert [Version(OLDEST[name]).release[: len(bound)] for bound in bounds] == bounds


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--python", "3.99"], 1, "there is no Python 3.99 here"),
        (["--slow"], 2, "unknown option --slow"),
        (["--slow"], 2, "--pretend-device"),
        (["--slow"], 2, "--newest"),
    ],
)
def test_a_python_that_cannot_be_had_is_named(arguments, status, said):
    done = subprocess.run([ROOT / "scripts/test", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stderr


# ---- what runs with the oldest versions: oldest.toml ----

RUNS, NEWER, EXACT = (oldest_cases.TABLE[name] for name in ("runs", "newer", "exact"))
NEWEST = "1.32.0"  # of ONNX Runtime: scripts/newest.txt


@pytest.mark.parametrize("path", RUNS)
def test_what_runs_there_exists_and_says_why(path):
    assert (ROOT / path).exists()
    assert RUNS[path].keys() == {"every", "why"}
    assert RUNS[path]["why"]


@pytest.mark.parametrize("row", NEWER, ids=lambda row: f"{row['package']} {row['from']}: {row['why']}")
def test_what_needs_a_newer_package_is_a_test_and_has_a_reason(row):
    assert Version(row["from"]) > Version(OLDEST[row["package"]])
    assert row["why"]
    for beginning in row["tests"]:
        file, _, name = beginning.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
        assert oldest_cases.row_of(file) is not None, "what does not run there needs no row"


@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row['package']} {row['release']}: {row['why']}")
def test_what_needs_just_one_release_is_a_test_and_has_a_reason(row):
    assert row["why"]
    for beginning in row["tests"]:
        file, _, name = beginning.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_the_oldest_versions_skip_all_of_these_and_the_measured_release_none():
    assert len(oldest_cases.needed(OLDEST)) == sum(len(row["tests"]) for row in [*NEWER, *EXACT])
    assert not oldest_cases.needed({"onnx": "1.23.2", "onnxruntime": "1.31.1"})


def test_the_newest_onnx_runtime_skips_what_needs_just_one_release():
    newest = oldest_cases.needed({"onnx": "1.23.2", "onnxruntime": NEWEST})
    assert list(newest) == [name for row in EXACT for name in row["tests"]]
    assert all(NEWEST in reason for reason in newest.values())
    assert f"onnxruntime=={NEWEST}" in (ROOT / "scripts/newest.txt").read_text().splitlines()


FOLDERS = {"tests/ops": {"every": 1}, "tests/graph/test_types.py": {"every": 5}, "tests/test_cli.py": {"every": 3}}


@pytest.mark.parametrize(
    ("path", "folder", "wanted"),
    [
        ("tests/ops", True, True),
        ("tests/ops/test_table.py", False, True),
        ("tests/graph", True, True),
        ("tests/graph/test_types.py", False, True),
        ("tests/graph/test_node_kind.py", False, False),
        ("tests/view", True, False),
        ("tests/training", True, False),
        ("tests/test_cli.py", False, True),
        ("tests/test_cli_jobs.py", False, False),
    ],
)
def test_files_and_folders_are_chosen_by_their_rows(path, folder, wanted):
    assert oldest_cases.is_wanted(path, folder=folder, runs=FOLDERS) is wanted


TRAINS = """
from amp_transpiler import wheels
from amp_transpiler.errors import EnvironmentProblem

import pytest

def test_trains(): wheels.require_for_training()

@pytest.fixture
def trained(): wheels.require_for_training()

def test_of_a_fixture_that_trains(trained): pass

def test_another_problem(): raise EnvironmentProblem("no device")
"""


@pytest.mark.parametrize(("needed", "outcome"), [("0.1", "1 failed, 2 passed"), ("99.0", "1 failed, 2 skipped")])
def test_a_test_of_training_is_skipped_where_training_is_refused(needed, outcome, tmp_path):
    """By what is raised: another problem of the environment is a failure."""
    (tmp_path / "test_some.py").write_text(TRAINS)
    code = f"from amp_transpiler import wheels\nwheels.OLDEST_FOR_TRAINING = {needed!r}\n"
    code += f"wheels.OLDEST_ONNX_FOR_TRAINING = {needed!r}\n"
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text() + code)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path, "-rs"]
    path = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"}
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=path)
    assert outcome in child.stdout, child.stdout + child.stderr
    assert ("training needs" in child.stdout) == (needed == "99.0")


# ---- the table of fresh environments ----

PAGE = (ROOT / "docs/installation.md").read_text()


def test_the_page_has_a_row_for_each_environment_and_each_is_as_expected():
    assert fresh_environments.missing(PAGE) == []


def test_the_environments_name_the_oldest_versions():
    [oldest] = [environment for environment in fresh_environments.ENVIRONMENTS if environment.name == "oldest"]
    assert dict(line.split("==") for line in oldest.before).items() <= OLDEST.items()
    [old] = [environment for environment in fresh_environments.ENVIRONMENTS if environment.name == "too old"]
    assert f"is older than {wheels.OLDEST}" in old.refusal


@pytest.mark.parametrize("environment", fresh_environments.ENVIRONMENTS, ids=lambda environment: environment.name)
def test_a_row_that_is_gone_or_has_a_fault_is_told(environment):
    [row] = [line for line in PAGE.splitlines() if line.startswith(environment.begin)]
    assert fresh_environments.missing(PAGE.replace(f"{row}\n", ""))[0].startswith(f"{environment.name}: no row")
    failed = fresh_environments.Outcome(environment, faults=("pip check: a package is missing",)).row()
    assert fresh_environments.missing(fresh_environments.with_rows(PAGE, [failed]))[0].startswith(
        f"{environment.name}: exp"
    )
    assert fresh_environments.with_rows(PAGE, [row]) == PAGE


@pytest.mark.slow
def test_models_count_as_converted_by_the_names_that_the_command_gives(tmp_path):
    """Some of them gain nothing, and are kept in float32."""
    assert fresh_environments._convert(pathlib.Path(sys.executable), tmp_path) == (len(fresh_environments.MODELS), "")
    assert len(list(tmp_path.glob("*.fp32.onnx"))) in range(1, len(fresh_environments.MODELS))
