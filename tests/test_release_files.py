"""The files beside the package: container, action for CI, citation, and the script that checks a release."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


# ---- the container ----


def test_the_container_has_a_python_and_extras_that_exist():
    assert re.search(r"ARG PYTHON=([\d.]+)", DOCKERFILE)[1] in SpecifierSet(PROJECT["requires-python"])
    assert re.search(r"ARG EXTRAS=(\S+)", DOCKERFILE)[1] in PROJECT["optional-dependencies"]
    assert 'ENTRYPOINT ["amp-transpile"]' in DOCKERFILE
    assert "amp-transpile" in PROJECT["scripts"]


@pytest.mark.slow
def test_the_container_passes_its_linter():
    hadolint = shutil.which("hadolint", path=pathlib.Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed: the extra [release] has it")
    done = run([hadolint, ROOT / "Dockerfile"])
    assert done.returncode == 0, done.stdout


# ---- the action ----


def steps():
    """Return the bash of the action's steps by name."""
    return {
        name.strip(): "\n".join(line.removeprefix("        ") for line in text.splitlines())
        for name, text in re.findall(r"- name: (.*)\n(?:.*\n)*?      run: \|\n((?:        .*\n)+)", ACTION)
    }


# inputs that differ from the default -> what the command gets
CALLS = [
    ({}, "--check . --format text --fail-on error"),
    ({"PATHS": "a.onnx models"}, "--check a.onnx models --format text --fail-on error"),
    (
        {"FORMAT": "sarif", "OUTPUT": "found.sarif", "IGNORE": "a b"},
        "--check . --format sarif --fail-on error -o found.sarif --ignore a --ignore b",
    ),
]


@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize(("changed", "expected"), CALLS)
def test_the_action_calls_the_command(tmp_path, changed, expected, status):
    command = tmp_path / "amp-transpiler" / "bin" / "amp-transpile"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    command.chmod(0o755)
    inputs = {"PATHS": ".", "FORMAT": "text", "OUTPUT": "", "FAIL_ON": "error", "IGNORE": "", **changed}
    runner = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "outputs")}
    script = steps()["Check models"]
    assert {name for name in inputs if f'"${name}"' in script} == inputs.keys()
    done = run(["bash", "-euo", "pipefail", "-c", script], env={**os.environ, **inputs, **runner})
    stopped, *printed, resumed = done.stdout.splitlines()
    assert (printed, done.returncode) == ([expected], status)
    token = stopped.removeprefix("::stop-commands::")
    assert len(token) == 32  # hexadecimal digits that no name of a file can hold
    assert resumed == f"::{token}::"
    assert (tmp_path / "outputs").read_text() == f"status={status}\n"


def test_every_input_of_the_action_is_read():
    inputs = ACTION.partition("\ninputs:\n")[2].partition("\noutputs:\n")[0]
    for name in re.findall(r"^  ([\w-]+):$", inputs, re.MULTILINE):
        assert f"${{{{ inputs.{name} }}}}" in ACTION


# ---- the workflow ----


def test_the_workflow_calls_the_checks_with_pythons_that_the_package_takes():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    commands = re.findall(r"- run: (.*)", workflow)
    environments = 'python scripts/fresh_environments.py | tee -a "$GITHUB_STEP_SUMMARY"'
    assert commands == [".ci/run --fast", ".ci/run", environments]
    assert "\n        shell: bash" in workflow.partition(environments)[2], (
        "only that shell fails if the first command does"
    )
    assert os.access(ROOT / ".ci/run", os.X_OK)
    pythons = re.findall(r'"(3\.\d+)"', workflow)
    assert len(pythons) >= 3
    assert all(python in SpecifierSet(PROJECT["requires-python"]) for python in pythons)
    assert {name.partition("@")[0] for name in re.findall(r"uses: (.*)", workflow)} == {
        "actions/checkout",
        "actions/setup-python",
    }


# ---- the release ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("action.yml", "github-actions"),
        (".github/workflows/ci.yml", "github-workflows"),
        ("CITATION.cff", "citation-file-format"),
    ],
)
def test_a_file_follows_its_schema(file, schema):
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed: the extra [release] has it")
    done = run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / file])
    assert done.returncode == 0, done.stdout


def test_the_citation_says_what_the_metadata_say():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"license: {PROJECT['license']}\n" in citation
    assert PROJECT["authors"][0]["name"] in citation
    assert "\nversion:" not in citation  # it comes from tags


@pytest.mark.slow
def test_the_distributions_are_sound(tmp_path):
    for tool in ("build", "twine", "check_wheel_contents"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed: the extra [release] has it")
    environment = {**os.environ, "RELEASE_PYTHON": sys.executable, "RELEASE_FOLDER": str(tmp_path / "dist")}
    environment.pop("PYTHONPATH", None)
    done = run([ROOT / "scripts/release_check", sys.executable], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"release_check: \S+ is sound, tried with 1 Python\(s\)", done.stdout)
    assert {path.suffix for path in (tmp_path / "dist").iterdir()} == {".gz", ".whl"}
