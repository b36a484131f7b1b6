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

import amp_transpiler as amp

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"amp_transpiler-{amp.__version__}"
INFO = f"{NAME}.dist-info"
LEGAL = ("LICENSE", "NOTICE")
TAKEN = ("amp_transpiler/targets/data/releases.json", "amp_transpiler/ops/operators.txt", "scripts/paddle_pure_fp16.py")


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
    return folder / NAME


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{INFO}/METADATA"))


def files_of_the_package():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "amp_transpiler").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    extra = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    legal = {f"{INFO}/licenses/{name}" for name in LEGAL}
    assert names == files_of_the_package() | extra | legal
    assert {"amp_transpiler/py.typed", *TAKEN[:2]} <= names


@pytest.mark.parametrize("name", LEGAL)
def test_license_and_notice_are_in_wheel_and_source(wheel, source, name):
    text = (ROOT / name).read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{INFO}/licenses/{name}") == text
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
    assert metadata["Version"] == amp.__version__
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


def test_the_wheel_installs_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{INFO}/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "amp-transpile", "=", "amp_transpiler.cli:main"]


def test_the_wheel_converts_a_model_by_itself(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shutil.copy(ROOT / "models" / "rocm_convnet.onnx", tmp_path / "m.onnx")
    command = [sys.executable, "-m", "amp_transpiler", "m.onnx", "--no-verify"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")}, check=True)
    assert (tmp_path / "m.fp16.onnx").is_file()


def test_the_source_distribution_has_tests_scripts_documents_and_news(source):
    for name in ("NEWS.md", "CHANGELOG.md", "README.md", "docs/architecture.md", "models/bert_1layer.onnx"):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes()
    for name in ("scripts/setup", "scripts/test", "scripts/oldest.txt", "tests/test_package.py", "pyproject.toml"):
        assert (source / name).is_file()


def test_the_source_distribution_builds_the_same_wheel(wheel, source, tmp_path):
    copy = shutil.copytree(source, tmp_path / "source")
    assert build(copy, "wheel", tmp_path).read_bytes() == wheel.read_bytes()
