#!/usr/bin/env python3
"""Run a model with ONNX Runtime's WebGPU provider, on a machine without a GPU, and print what comes out.

    python scripts/webgpu_oracle.py MODEL.onnx [INPUTS.npz]     # outputs: sizes, ranges, values that are not finite
    python scripts/webgpu_oracle.py MODEL.onnx X.npz -o Y.npz   # and writes them
    python scripts/webgpu_oracle.py MODEL.onnx X.npz --provider cpu
    python scripts/webgpu_oracle.py MODEL.onnx --placement      # which provider each node goes to; runs nothing
    python scripts/webgpu_oracle.py --install                   # only what is needed

The kernels are real: onnxruntime-node, from npm, has the provider of onnxruntime-web, and Mesa's lavapipe runs its
shaders, float16 ones too, on the CPU. Times mean nothing. Mesa comes from Debian's mirror that this host is set up for,
from the backports where the release's own is too old; it is unpacked, not installed, into a folder of the user's cache
(AMP_WEBGPU_ORACLE names another one): some 400 MB. It needs Debian on x86-64, apt-get, node and npm, and says what is
missing elsewhere (exit status 2). Without INPUTS.npz, inputs are made up: equal ones in every run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

RELEASE = "1.30.0"
"""The newest onnxruntime-node."""

Array = npt.NDArray[Any]

_SCRIPT = pathlib.Path(__file__).with_suffix(".js")
_PROGRAMS = ("apt-get", "dpkg", "node", "npm")
_DRIVER = "mesa-vulkan-drivers"
_LIMIT = 600  # seconds for a step of the installation, and for a run
_PLACED = re.compile(r"(?:Node\(s\)|All nodes) placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"\]\s{3}(\S+) \((.*)\)\s*$")


class NotInstallable(Exception):
    """The oracle cannot be had on this host; the text says why."""


class CannotRun(Exception):
    """ONNX Runtime refuses the model, or dies of it."""


def cache_folder() -> pathlib.Path:
    """Return the folder that the oracle is unpacked in."""
    chosen = os.environ.get("AMP_WEBGPU_ORACLE")
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return pathlib.Path(chosen) if chosen else base / "amp_transpiler" / f"webgpu_oracle-{RELEASE}"


def install(folder: pathlib.Path | None = None) -> pathlib.Path:
    """Unpack what the oracle needs, once; return the folder.

    Raises:
        NotInstallable: this host is another system, a program is missing, or a registry does not answer.
    """
    folder = (folder or cache_folder()).absolute()
    if (folder / "complete").is_file():
        return folder
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NotInstallable(f"the WebGPU oracle runs on Linux x86-64, not on {platform.system()} {platform.machine()}")
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise NotInstallable(f"the WebGPU oracle needs {', '.join(absent)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".webgpu-oracle-") as name:
        staged = pathlib.Path(name) / "oracle"
        _unpack_driver(staged)
        _step("npm", "install", "--ignore-scripts", f"--prefix={staged / 'node'}", f"onnxruntime-node@{RELEASE}")
        (staged / "complete").touch()
        try:
            staged.rename(folder)
        except OSError as error:  # another process was quicker, or there is something else
            if not (folder / "complete").is_file():
                raise NotInstallable(f"the WebGPU oracle cannot be written to {folder}: {error}") from error
    return folder


def _unpack_driver(staged: pathlib.Path) -> None:
    """Download Mesa's Vulkan drivers, and what they need that is not on this host, and unpack them."""
    apt = staged / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "sources.list").write_text(_sources(), encoding="utf-8")
    paths = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
    }
    options = [f"-o{name}={value}" for name, value in paths.items()]
    _step("apt-get", *options, "-qq", "update")
    plainly = ["-qq", "-y", "--no-install-recommends", "--download-only", "--reinstall"]
    _step("apt-get", *options, *plainly, "-t", f"{_codename()}-backports", "install", "libvulkan1", _DRIVER)
    archives = sorted((apt / "cache" / "archives").glob("*.deb"))
    if not any(path.name.startswith(_DRIVER) for path in archives):
        raise NotInstallable(f"the WebGPU oracle needs Debian's package {_DRIVER}, which apt-get did not bring")
    for archive in archives:
        _step("dpkg", "-x", str(archive), str(staged / "root"))
    shutil.rmtree(apt)


def _codename() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def _sources() -> str:
    """Return apt's sources: the release that this host has, and its backports from the same place."""
    known = _step("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    codename = _codename()
    lines = set()
    for line in known.splitlines():
        uri, release, component, *_ = line.split()
        if release == codename and component == "main":
            keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
            signed = f"[signed-by={keyring}] " if pathlib.Path(keyring).is_file() else ""
            lines |= {f"deb {signed}{uri} {suite} main" for suite in (codename, f"{codename}-backports")}
    if not lines:
        raise NotInstallable(f"the WebGPU oracle needs Debian's package lists, and apt-get knows none of {codename!r}")
    return "\n".join(sorted(lines)) + "\n"


def _step(*command: str) -> str:
    """Run a command and return what it prints.

    Raises:
        NotInstallable: it fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(f"the WebGPU oracle cannot be installed: {command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotInstallable(f"the WebGPU oracle cannot be installed: {command[0]} {command[-1]}: {last}")
    return done.stdout


class Placed(NamedTuple):
    """The nodes that a provider runs.

    Attributes:
        total: how many there are.
        nodes: `OPERATOR (NAME)` of each; empty where the provider runs all of a model.
    """

    total: int
    nodes: list[str]


class Oracle:
    """A process that runs models with onnxruntime-node, started when it is first asked, and again after a crash.

    Args:
        folder: where `install` has unpacked it.
        level: which optimizations of graphs ONNX Runtime makes: `all`, as by default, or `disabled`.
    """

    def __init__(self, folder: pathlib.Path, level: str = "all") -> None:
        self._folder, self._level = folder, level
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._log is not None:
            self._log.close()
        self._process = self._log = None

    def run(self, model: pathlib.Path, feeds: Mapping[str, Array], provider: str = "webgpu") -> dict[str, Array]:
        """Return the outputs of a model.

        Args:
            model: its path.
            feeds: name -> input.
            provider: the provider that is preferred; the CPU's runs what it does not.

        Raises:
            CannotRun: ONNX Runtime refuses it, or the process dies.
        """
        with tempfile.TemporaryDirectory(prefix="webgpu-oracle-") as name:
            scratch = pathlib.Path(name)
            inputs = {key: _written(np.asarray(feeds[key]), scratch / f"input-{at}") for at, key in enumerate(feeds)}
            reply = self._ask(model, provider, {"inputs": inputs, "folder": name, "verbose": False})
            return {key: _read(row) for key, row in reply["outputs"].items()}

    def placement(self, model: pathlib.Path) -> dict[str, Placed]:
        """Return the nodes that each provider would run, after ONNX Runtime's optimizations.

        Raises:
            CannotRun: as above.
        """
        self._ask(model, "webgpu", {"inputs": None, "folder": "", "verbose": True})
        assert self._log is not None  # the process has been started
        self._log.seek(0)
        placed: dict[str, Placed] = {}
        provider = ""
        for line in self._log:
            if match := _PLACED.search(line):
                provider = match[1]
                placed[provider] = Placed(int(match[2]), [])
            elif provider and (node := _NODE.search(line)):
                placed[provider].nodes.append(f"{node[1]} ({node[2]})")
            else:
                provider = ""
        return placed

    def _ask(self, model: pathlib.Path, provider: str, rest: Mapping[str, Any]) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        assert self._log is not None
        self._log.seek(0)
        self._log.truncate()
        question = {"model": str(pathlib.Path(model).absolute()), "provider": provider, "level": self._level, **rest}
        timer = threading.Timer(_LIMIT, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._log.seek(0)
            last = (self._log.read().strip() or "no message").splitlines()[-1]
            self.close()
            raise CannotRun(f"onnxruntime-node ended: {last}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise CannotRun(reply["error"])
        return reply

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._log = tempfile.TemporaryFile("w+", prefix="webgpu-oracle-", errors="replace")  # noqa: SIM115  closed by close()
            self._process = subprocess.Popen(
                ["node", str(_SCRIPT), str(self._folder / "node")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=_environment(self._folder),
            )
        return self._process


def _environment(folder: pathlib.Path) -> dict[str, str]:
    """Return the environment in which the Vulkan loader takes lavapipe and no other driver."""
    libraries = folder / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    icd = {"ICD": {"api_version": "1.3.0", "library_path": str(libraries / "libvulkan_lvp.so")}}
    description = folder / "lavapipe.json"
    if not description.is_file():  # with the folder's own path, so it is not unpacked
        description.write_text(json.dumps({**icd, "file_format_version": "1.0.1"}), encoding="utf-8")
    paths = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "VK_DRIVER_FILES": str(description), "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def _written(array: Array, file: pathlib.Path) -> dict[str, Any]:
    """Write an input for the process."""
    if array.dtype.kind in "OSU":
        file.write_text(json.dumps([_text(value) for value in array.reshape(-1)]), encoding="utf-8")
        return {"type": "string", "dims": list(array.shape), "file": str(file)}
    file.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"type": array.dtype.name, "dims": list(array.shape), "file": str(file)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(row: Mapping[str, Any]) -> Array:
    """Read an output of the process."""
    file, dims = pathlib.Path(row["file"]), [int(size) for size in row["dims"]]
    if row["type"] == "string":
        return np.array(json.loads(file.read_text(encoding="utf-8")), dtype=object).reshape(dims)
    return np.frombuffer(file.read_bytes(), dtype=row["type"]).reshape(dims).copy()


def main() -> int:
    options = _options()
    try:
        folder = install()
        if options.model is None:
            print(f"{folder}: onnxruntime-node {RELEASE} and Mesa's lavapipe")
            return 0
        with Oracle(folder, options.level) as oracle:
            return _show(oracle, options)
    except NotInstallable as error:
        print(f"webgpu_oracle.py: {error}", file=sys.stderr)
        return 2
    except CannotRun as error:
        print(f"webgpu_oracle.py: {options.model}: {error}", file=sys.stderr)
        return 1


def _show(oracle: Oracle, options: argparse.Namespace) -> int:
    if options.placement:
        for provider, placed in oracle.placement(options.model).items():
            print(f"{provider}: {placed.total} nodes", *placed.nodes, sep="\n  ")
        return 0
    feeds = dict(np.load(options.inputs)) if options.inputs else _made_up(options.model)
    outputs = oracle.run(options.model, feeds, options.provider)
    for name, array in outputs.items():
        print(f"{name}  {array.dtype}{list(array.shape)}  {_range(array)}")
    if options.output:
        arrays: dict[str, Any] = dict(outputs)
        np.savez(options.output, **arrays)
    return 0


def _range(array: Array) -> str:
    if array.dtype.kind not in "fiu" or not array.size:
        return ""
    finite = array[np.isfinite(array)]
    span = f"{float(finite.min()):.6g} to {float(finite.max()):.6g}" if finite.size else "no finite value"
    absent = array.size - finite.size
    return span if not absent else f"{span}, {absent} of {array.size} not finite"


def _made_up(model: pathlib.Path) -> dict[str, Array]:
    """Return the inputs that the package makes up for a model, tried on the CPU."""
    import amp_transpiler
    from amp_transpiler.verification.synthesis import synthesise_inputs

    program = amp_transpiler.load(model)
    return dict(synthesise_inputs(program.model, amp_transpiler.Session(program, amp_transpiler.CPUPlace()).run))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path)
    parser.add_argument("inputs", nargs="?", type=pathlib.Path, metavar="INPUTS.npz")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="OUT.npz")
    parser.add_argument("--provider", choices=("webgpu", "cpu"), default="webgpu")
    parser.add_argument("--level", choices=("all", "disabled"), default="all", help="ONNX Runtime's optimizations")
    parser.add_argument("--placement", action="store_true", help="print where each node goes, and run nothing")
    parser.add_argument("--install", action="store_true", help="only install what is needed")
    options = parser.parse_args()
    if options.model is None and not options.install:
        parser.error("give a MODEL.onnx, or --install")
    return options


if __name__ == "__main__":
    sys.exit(main())
