#!/usr/bin/env python3
"""Where would ONNX Runtime's CUDA provider place each node? Answered by the real provider, with no GPU.

    python scripts/placement.py model.onnx [more.onnx ...]  # a line per model, then its nodes left on the CPU
    python scripts/placement.py --json model.onnx           # {path: {"cuda": {op: n}, "cpu": ..., "cpu_nodes": [...]}}
    python scripts/placement.py --level disable model.onnx  # optimization: disable | basic | extended | all (default)

Run it under a Python that has onnxruntime-gpu, on Linux x86-64 with gcc and nm; without them it says so and exits
with status 3. A model whose session is refused gets {"error": ...}. It builds stand-ins for the CUDA driver and
libraries (every function answers "success", memory is host memory, the device claims to be sm_90), starts itself again
with them preloaded, and creates real sessions: graph optimization, kernel look-up and node placement are the shipped
provider's own. No kernel ever runs, so it says nothing of numbers or speed. Small shape-computing nodes (Shape, Gather,
Concat on int64) are put on the CPU by design; a float node on the CPU is what to look for.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcurand.so.10",
    "libcudnn.so.9",
    "libcufft.so.12",
)
LEVELS = {"disable": 0, "basic": 1, "extended": 2, "all": 99}
STANDIN_VARIABLE = "ORT_PLACEMENT_STANDIN"
SPECIAL = pathlib.Path(__file__).with_name("placement_standin.c")


class CannotTell(Exception):
    """This machine lacks what the question needs; the message names it."""


def provider_library() -> pathlib.Path:
    """Return the path of the installed CUDA provider."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise CannotTell("this Python has no onnxruntime: install onnxruntime-gpu")
    provider = pathlib.Path(spec.submodule_search_locations[0]) / "capi" / "libonnxruntime_providers_cuda.so"
    if not provider.exists():
        raise CannotTell("this Python's onnxruntime has no CUDA provider: install onnxruntime-gpu")
    return provider


def build(folder: pathlib.Path, provider: pathlib.Path) -> None:
    """Compile stand-ins for what `provider` asks of CUDA: ours where a real answer counts, else "success"."""
    for tool in ("gcc", "nm"):
        if shutil.which(tool) is None:
            raise CannotTell(f"{tool} is not installed (Debian: the package {'gcc' if tool == 'gcc' else 'binutils'})")
    special = SPECIAL.read_text()
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(provider)], check=True, capture_output=True, text=True
    ).stdout
    asked = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    asked = {name for name in asked if re.match(r"(cublas|curand|cufft|cudnn|cuda|__cuda|cu[A-Z])", name)}
    # cuDNN's front end looks its functions up by name.
    asked |= {name.decode() for name in re.findall(rb"\bcudnn[A-Z]\w+(?=\0)", provider.read_bytes())}
    written = set(re.findall(r"\b(cu\w+|__cuda\w+)\(", special))
    plain = "".join(f"int {name}(void){{return 0;}}\n" for name in sorted(asked - written))
    creators = re.compile(r"int (cudnnCreate\w+|cudnnBackendCreate\w+)\(void\)\{return 0;\}")
    plain = creators.sub(r"int \1(void**p){*p=calloc(1,4096);return 0;}", plain)
    source = folder / "standin.c"
    source.write_text(special + plain)
    compiler = ["gcc", "-w", "-shared", "-fPIC", str(source)]
    subprocess.run([*compiler, "-o", str(folder / "standin.so")], check=True)
    for library in LIBRARIES:
        subprocess.run([*compiler, "-o", str(folder / library), f"-Wl,-soname,{library}"], check=True)


def stand_ins(provider: pathlib.Path) -> pathlib.Path:
    """Return the folder of the libraries for this provider and these files, building them the first time."""
    state = f"{provider.stat().st_size} {provider.stat().st_mtime_ns}".encode()
    sources = pathlib.Path(__file__).read_bytes() + SPECIAL.read_bytes()
    key = hashlib.sha256(state + sources).hexdigest()[:16]
    ready = pathlib.Path(tempfile.gettempdir()) / f"ort-placement-{os.getuid()}-{key}"
    if not ready.exists():
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ort-placement-"))
        try:
            build(folder, provider)
            folder.rename(ready)
        except BaseException as error:
            shutil.rmtree(folder)
            if not (isinstance(error, OSError) and ready.exists()):  # unless another run was first
                raise
    return ready


def place(path: str, level: str) -> dict[str, Any]:
    """Return where the nodes of the model at `path` go, or why its session is refused."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel(LEVELS[level])
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    left = []
    try:
        session = ort.InferenceSession(path, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        for part in session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                counts[part.ep_name][node.op_type] += 1
                if part.ep_name == "CPUExecutionProvider":
                    left.append(f"{node.op_type} {node.name}")
    except Exception as error:  # noqa: BLE001  what the session refuses is the answer asked for
        return {"error": str(error)}
    return {
        "cuda": dict(counts["CUDAExecutionProvider"]),
        "cpu": dict(counts["CPUExecutionProvider"]),
        "cpu_nodes": left,
    }


def restart_with_stand_ins() -> int:
    """Run this script again with the stand-in libraries preloaded; return its exit status."""
    folder = stand_ins(provider_library())
    environment = {
        **os.environ,
        STANDIN_VARIABLE: "1",
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(folder / "standin.so"),
    }
    return subprocess.run([sys.executable, __file__, *sys.argv[1:]], check=False, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--level", choices=LEVELS, default="all")
    options = parser.parse_args()
    if STANDIN_VARIABLE not in os.environ:
        try:
            return restart_with_stand_ins()
        except CannotTell as error:
            print(f"placement.py: {error}", file=sys.stderr)
            return 3
    results = {path: place(path, options.level) for path in options.models}
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        return 0
    for path, result in results.items():
        if "error" in result:
            print(f"{path}: refused: {result['error']}")
            continue
        print(f"{path}: {sum(result['cuda'].values())} nodes on CUDA, {sum(result['cpu'].values())} on the CPU")
        for node in result["cpu_nodes"]:
            print(f"  CPU: {node}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
