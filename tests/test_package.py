"""What is installed: the wheel and the source distribution, built as pip builds them, and looked into."""

import email
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from amp_transpiler import version

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
UNKNOWN = "0.0.0.dev0"
LEGAL = ("LICENSE", "NOTICE")
TAKEN = (
    "amp_transpiler/targets/data/releases.json",
    "amp_transpiler/ops/operators.txt",
    "examples/paddle_pure_fp16.py",
)


def build(source, kind, into):
    """Build the distribution with the backend itself: no network, no environment of its own."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", into], cwd=source, check=True)
    return next(into.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("amp_transpiler-*/"))


@pytest.fixture(scope="module")
def info(wheel):
    """Return the name of the folder in the wheel that describes it."""
    name, version, *_ = wheel.name.split("-")
    return f"{name}-{version}.dist-info"


@pytest.fixture(scope="module")
def metadata(wheel, info):
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{info}/METADATA"))


def files_of_the_package():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "amp_transpiler").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(wheel, info):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    extra = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    legal = {f"{info}/licenses/{name}" for name in LEGAL}
    assert names == files_of_the_package() | extra | legal
    assert {"amp_transpiler/py.typed", *TAKEN[:2]} <= names


@pytest.mark.parametrize("name", LEGAL)
def test_license_and_notice_are_in_wheel_and_source(wheel, info, source, name):
    text = (ROOT / name).read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{info}/licenses/{name}") == text
    assert (source / name).read_bytes() == text


def test_the_notice_names_the_copyright_and_every_file_with_data_of_others():
    text = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "Copyright 2026 amp_transpiler contributors" in text
    assert "ONNX Runtime, Copyright (c) Microsoft Corporation, MIT License" in text
    assert "Permission is hereby granted, free of charge" in text  # MIT asks for its text
    for name in TAKEN:
        assert name in text
        assert (ROOT / name).is_file()


def test_the_metadata_says_what_pyproject_says(metadata):
    assert metadata["Name"] == "amp-transpiler"
    assert str(Version(metadata["Version"])) == metadata["Version"]
    assert metadata["Author"] == "amp_transpiler contributors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == list(LEGAL)
    assert set(metadata["Requires-Python"].split(",")) == set(PROJECT["requires-python"].split(","))
    assert set(metadata.get_all("Classifier")) == set(PROJECT["classifiers"])
    assert metadata.get_payload(decode=True).decode("utf-8") == (ROOT / "README.md").read_text(encoding="utf-8")
    needed = {str(Requirement(line)) for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert len(needed) == len(PROJECT["dependencies"])
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_the_classifiers_name_the_python_versions_that_are_allowed():
    named = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if "Python :: 3." in c}
    allowed = Requirement(f"x{PROJECT['requires-python']}").specifier
    assert named == {version for version in (f"3.{minor}" for minor in range(8, 40)) if version in allowed}


def test_the_wheel_installs_the_command(wheel, info):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{info}/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "amp-transpile", "=", "amp_transpiler.cli:main"]


def test_the_wheel_converts_a_model_by_itself(wheel, metadata, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shutil.copy(ROOT / "models" / "rocm_convnet.onnx", tmp_path / "m.onnx")
    command = [sys.executable, "-m", "amp_transpiler", "m.onnx", "--no-verify"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "m.fp16.onnx").is_file()
    code = "import amp_transpiler; print(amp_transpiler.__version__)"
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == metadata["Version"]


def test_the_source_distribution_has_tests_scripts_and_documents(source):
    for name in (
        "CHANGELOG.md",
        "README.md",
        "lab/README.md",
        "examples/train.py",
        "docs/architecture.md",
        "models/bert_1layer.onnx",
    ):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes()
    for name in ("scripts/setup", "scripts/test", "scripts/oldest.txt", "tests/test_package.py", "pyproject.toml"):
        assert (source / name).is_file()


def test_the_source_distribution_builds_the_same_wheel(wheel, source, tmp_path):
    copy = shutil.copytree(source, tmp_path / "source")
    assert build(copy, "wheel", tmp_path).read_bytes() == wheel.read_bytes()


# ---- the version ----


def version_of(folder, **variables):
    command = [sys.executable, "-m", "hatchling", "version"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, check=True)


@pytest.mark.slow
def test_the_version_comes_from_the_tag(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    assert version_of(tmp_path) == UNKNOWN  # neither git nor a source distribution
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert version_of(tmp_path).startswith("0.0.0.dev1+g")  # no tag
    git(tmp_path, "tag", "v1.2.0")
    assert version_of(tmp_path) == "1.2.0"
    assert version_of(tmp_path, PATH="/nowhere") == UNKNOWN  # no git
    git(tmp_path, "commit", "-q", "-m", "second", "--allow-empty")
    git(tmp_path, "tag", "vacation")
    git(tmp_path, "tag", "other")
    assert version_of(tmp_path).startswith("1.2.1.dev1+g")
    git(tmp_path, "tag", "v1.3.0rc1")
    assert version_of(tmp_path) == "1.3.0rc1"


def test_a_folder_on_the_path_alone_has_a_version(monkeypatch):
    def missing(name):
        raise version.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version.importlib.metadata, "version", missing)
    assert version._installed() == UNKNOWN
    assert PYPROJECT["tool"]["hatch"]["version"]["fallback-version"] == UNKNOWN
