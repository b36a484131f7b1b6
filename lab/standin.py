"""Stand-ins for the CUDA and TensorRT libraries, so that ONNX Runtime's GPU providers start without a GPU.

Every function answers "success"; the few whose answers are looked at are in `placement_standin.c`. Needs Linux on
x86-64 with gcc and binutils.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable

__all__ = [
    "STANDIN_VARIABLE",
    "CannotTell",
    "capi_folder",
    "check_tools",
    "cuda_provider",
    "kept_folder",
    "output",
    "stand_in_environment",
]

STANDIN_VARIABLE = "ORT_PLACEMENT_STANDIN"
SPECIAL = pathlib.Path(__file__).with_name("placement_standin.c")
PROVIDERS = ("libonnxruntime_providers_cuda.so", "libonnxruntime_providers_tensorrt.so")
PACKAGES = {"gcc": "gcc", "nm": "binutils", "readelf": "binutils"}
REPLACED = re.compile(
    r"cublas|curand|cufft|cudnn|cuda|__cuda|cu[A-Z]|nvrtc|nvJitLink|create\w+_INTERNAL|getInferLibVersion"
    r"|getPluginRegistry|initLibNvInferPlugins"
)
# Looked up by name when they run: by cuDNN's front end, and by older releases in the driver.
LOOKED_UP = re.compile(rb"\b(?:cudnn|cu)[A-Z]\w+(?=\0)")
CREATORS = re.compile(r"int (cudnnCreate\w+|cudnnBackendCreate\w+)\(void\)\{return 0;\}")


class CannotTell(Exception):
    """This machine lacks what the question needs; the message names it."""


def stand_in_environment(capi: pathlib.Path) -> dict[str, str]:
    """Return the environment in which the providers of the folder `onnxruntime/capi` load, without a GPU.

    Raises:
        CannotTell: a tool or the providers are missing.
    """
    cuda_provider(capi)
    folder = stand_ins([path for name in PROVIDERS if (path := capi / name).exists()])
    return {
        **os.environ,
        STANDIN_VARIABLE: "1",
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(folder / "standin.so"),
    }


def stand_ins(providers: list[pathlib.Path]) -> pathlib.Path:
    """Return the folder of the libraries for these providers, building them the first time."""
    state = "".join(f"{path.stat().st_size} {path.stat().st_mtime_ns} " for path in providers).encode()
    sources = pathlib.Path(__file__).read_bytes() + SPECIAL.read_bytes()
    return kept_folder("ort-placement", state + sources, lambda folder: build(folder, providers))


def kept_folder(name: str, state: bytes, build: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the temporary folder that `build` filled from sources of this `state`, filling it the first time."""
    key = hashlib.sha256(state).hexdigest()[:16]
    ready = pathlib.Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}-{key}"
    if not (ready.exists() and ready.stat().st_uid == os.getuid()):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-"))
        try:
            build(folder)
            folder.rename(ready)
        except BaseException as error:
            shutil.rmtree(folder)
            if not (isinstance(error, OSError) and ready.exists()):  # unless another run was first
                raise
    return ready


def check_tools(packages: dict[str, str]) -> None:
    """Ask for the tools, by the packages that Debian has them in.

    Raises:
        CannotTell: one is missing.
    """
    for tool, package in packages.items():
        if shutil.which(tool) is None:
            raise CannotTell(f"{tool} is not installed (Debian: the package {package})")


def capi_folder() -> pathlib.Path:
    """Return the folder of the installed ONNX Runtime's libraries.

    Raises:
        CannotTell: there is none.
    """
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise CannotTell("this Python has no onnxruntime: install onnxruntime-gpu")
    return pathlib.Path(spec.submodule_search_locations[0]) / "capi"


def cuda_provider(capi: pathlib.Path) -> pathlib.Path:
    """Return the CUDA provider of the folder `onnxruntime/capi`.

    Raises:
        CannotTell: the wheel is not the one for GPUs.
    """
    provider = capi / PROVIDERS[0]
    if not provider.exists():
        raise CannotTell("this Python's onnxruntime has no CUDA provider: install onnxruntime-gpu")
    return provider


def build(folder: pathlib.Path, providers: list[pathlib.Path]) -> None:
    """Compile stand-ins for what the providers ask of CUDA: ours where a real answer counts, else "success"."""
    check_tools(PACKAGES)
    asked: set[str] = set()
    libraries = {"libcuda.so.1"}
    for provider in providers:
        undefined = output("nm", "-D", "--undefined-only", str(provider))
        asked |= {line.split()[-1].split("@")[0] for line in undefined.splitlines()}
        asked |= {name.decode() for name in LOOKED_UP.findall(provider.read_bytes())}
        # Each release is linked to the CUDA of its time, so the names of the libraries are its own.
        libraries |= set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv)\S*)\]", output("readelf", "-d", str(provider))))
    special = SPECIAL.read_text()
    written = set(re.findall(r"\b(\w+)\(", special))
    plain = "".join(f"int {name}(void){{return 0;}}\n" for name in sorted(asked - written) if REPLACED.match(name))
    source = folder / "standin.c"
    source.write_text(special + CREATORS.sub(r"int \1(void**p){*p=calloc(1,4096);return 0;}", plain))
    compiler = ["gcc", "-w", "-shared", "-fPIC", str(source)]
    if "libcudart.so.11.0" in libraries:
        compiler.append("-DPROPERTIES=640")  # CUDA 11's record of a device is shorter
    subprocess.run([*compiler, "-o", str(folder / "standin.so")], check=True)
    for library in libraries:
        subprocess.run([*compiler, "-o", str(folder / library), f"-Wl,-soname,{library}"], check=True)


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
