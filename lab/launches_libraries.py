"""The stand-ins that `launches.py` counts on: CUDA's libraries, built from `launches_standin.c`."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import pathlib
import platform
import re
import sys

from standin import CannotTell, capi_folder, check_tools, cuda_provider, kept_folder, output

__all__ = ["MARK", "environment", "library", "under_stand_ins"]

SOURCE = pathlib.Path(__file__).with_name("launches_standin.c")
MARK = "ORT_LAUNCHES_STANDIN"  # the environment variable that names the folder of the libraries in use
VERSION = "1.31"
PACKAGES = {"gcc": "gcc", "nm": "binutils", "readelf": "binutils", "c++filt": "binutils"}
CUDA_SYMBOL = re.compile(r"(cublas|curand|cufft|cudnn|cuda|__cuda|cu[A-Z])")


def environment() -> dict[str, str]:
    """Return this process's environment with the stand-ins in front, for a Python that is to run on them.

    Raises:
        CannotTell: the machine is another kind, a tool is missing, or the wheel is not the GPU one.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotTell(f"runs on Linux on x86-64 only, this is {sys.platform} on {platform.machine()}")
    check_tools(PACKAGES)
    provider = cuda_provider(capi_folder())
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("onnxruntime-gpu")
        if not version.startswith(f"{VERSION}."):
            told = f"launches.py: made for onnxruntime-gpu {VERSION}, this is {version}: it may not run"
            print(told, file=sys.stderr)
    folder = str(_stand_ins(provider))
    path = ":".join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))
    preload = ":".join(filter(None, (f"{folder}/standin.so", os.environ.get("LD_PRELOAD"))))
    return {**os.environ, MARK: folder, "LD_LIBRARY_PATH": path, "LD_PRELOAD": preload}


def under_stand_ins() -> bool:
    """Return whether this process runs on the stand-ins."""
    return MARK in os.environ and hasattr(ctypes.CDLL(None), "launches_start")


def library() -> ctypes.CDLL:
    """Return the stand-ins' own functions.

    Raises:
        CannotTell: this process does not run on them; the message says how to start it.
    """
    if not under_stand_ins():
        raise CannotTell(
            "this process does not run on the stand-ins, nothing can be counted: start the program with "
            "`python lab/launches.py run YOUR_SCRIPT.py ...`"
        )
    loaded = ctypes.CDLL(None)
    for name in ("device_now", "device_peak", "tensors_now", "tensors_peak", "stop", "number", "detail"):
        getattr(loaded, f"launches_{name}").restype = ctypes.c_int64
    for name in ("name", "number", "detail"):
        getattr(loaded, f"launches_{name}").argtypes = [ctypes.c_int64]
    loaded.launches_name.restype = ctypes.c_char_p
    return loaded


def _stand_ins(provider: pathlib.Path) -> pathlib.Path:
    """Return the folder of the libraries built for `provider`, building them the first time."""
    status = provider.stat()
    state = f"{status.st_size} {status.st_mtime_ns}".encode() + SOURCE.read_bytes()
    sources = state + pathlib.Path(__file__).read_bytes()
    return kept_folder("ort-launches", sources, lambda folder: _build(folder, provider))


def _build(folder: pathlib.Path, provider: pathlib.Path) -> None:
    listing = output("nm", "-D", "--undefined-only", str(provider))
    asked = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    asked = {name for name in asked if CUDA_SYMBOL.match(name)}
    # cuDNN is looked up by name while running: its functions' names lie in the provider as strings.
    asked |= {name.decode() for name in re.findall(rb"\bcudnn[A-Z]\w+(?=\0)", provider.read_bytes())}
    special = SOURCE.read_text()
    written = set(re.findall(r"\b(cu\w+|__cuda\w+)\(", special))
    written |= set(re.findall(r"^(?:BLAS|DNN)\((\w+)", special, re.MULTILINE))
    written |= {f"cublas{a}gemm{b}" for a in "SD" for b in ("_v2", "Batched", "StridedBatched")}  # made by PRODUCTS
    plain = "\n".join(_plain(name) for name in sorted(asked - written))
    (folder / "standin.c").write_text(f"{special}\n/* ---- all others ---- */\n{plain}\n")
    compile_ = ("gcc", "-O1", "-w", "-shared", "-fPIC")
    # "$ORIGIN" is the loader's word for the folder a library lies in: the folder is renamed when it is complete.
    output(*compile_, "-o", str(folder / "standin.so"), str(folder / "standin.c"), "-Wl,-soname,standin.so")
    (folder / "empty.c").write_text("int standin_library;\n")
    needed = re.findall(r"\[(lib(?:cu\w+)\.so[.\d]*)\]", output("readelf", "-d", str(provider)))
    for name in {*needed, "libcudnn.so.9", "libcufft.so.12"}:
        soname = f"-Wl,-soname,{name}"
        rest = ("-Wl,--no-as-needed", str(folder / "standin.so"), "-Wl,-rpath,$ORIGIN")
        output(*compile_, "-o", str(folder / name), str(folder / "empty.c"), soname, *rest)


def _plain(name: str) -> str:
    if re.match(r"cudnnCreate|cudnnBackendCreate|cublas\w+Create$", name):
        return f"Status {name}(void **made) {{ return handle(made); }}"
    return f"Status {name}(void) {{ return 0; }}"
