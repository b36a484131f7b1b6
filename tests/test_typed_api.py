"""The public API is typed: a user's project passes mypy and pyright, both strict, against the installed wheel."""

import os
import pathlib
import shutil
import site
import subprocess
import sys
import venv
import zipfile

import pytest

PROJECT = pathlib.Path(__file__).parent / "user_project"
ROOT = PROJECT.parents[1]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a copy of the project, with an environment where the wheel is installed over what is installed here."""
    folder = tmp_path_factory.mktemp("user")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    copy = shutil.copytree(PROJECT, folder / "project")
    venv.create(copy / "env", symlinks=True)
    packages = next((copy / "env" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    (packages / "here.pth").write_text("\n".join(site.getsitepackages()))
    return copy


def checked(project, command):
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


CHECKERS = {
    "mypy": ["--python-executable", "env/bin/python", "convert.py", "train.py"],
    "pyright": ["--pythonpath", "env/bin/python", "convert.py", "train.py"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKERS)
def test_a_user_s_project_is_well_typed(project, name):
    pytest.importorskip(name)
    done = checked(project, [sys.executable, "-m", name, *CHECKERS[name]])
    if name == "pyright" and "npm" in done.stderr and done.returncode not in (0, 1):
        pytest.skip(f"pyright cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKERS)
def test_a_wrong_use_is_seen(project, name):
    pytest.importorskip(name)
    (project / "wrong.py").write_text('import amp_transpiler as amp\n\nnumber: int = amp.transpile("m.onnx").verdict\n')
    done = checked(project, [sys.executable, "-m", name, *CHECKERS[name][:2], "wrong.py"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "str" in done.stdout
    assert "int" in done.stdout
