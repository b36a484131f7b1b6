#!/usr/bin/env python3
"""Where would ONNX Runtime's CUDA provider place each node? Answered by the real provider, with no GPU.

    python lab/placement.py model.onnx [more.onnx ...]  # a line per model, then its nodes left on the CPU
    python lab/placement.py --json model.onnx           # {path: {"cuda": {op: n}, "cpu": ..., "cpu_nodes": [...]}}
    python lab/placement.py --level disable model.onnx  # optimization: disable | basic | extended | all (default)
    python lab/placement.py --json -                    # a path in each line of stdin, answered by a line of JSON

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
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from standin import STANDIN_VARIABLE, CannotTell, capi_folder, stand_in_environment

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

LEVELS = {"disable": 0, "basic": 1, "extended": 2, "all": 99}
UNCOUNTED = {"MemcpyToHost", "MemcpyFromHost"}  # inserted between providers, after the nodes are placed


def place(path: str, level: str) -> dict[str, Any]:
    """Return where the nodes of the model at `path` go, or why its session is refused."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel(LEVELS[level])
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    left = []
    try:
        for provider, op_type, name in placed_nodes(path, options):
            counts[provider][op_type] += 1
            if provider == "CPUExecutionProvider":
                left.append(f"{op_type} {name}")
    except Exception as error:  # noqa: BLE001  what the session refuses is the answer asked for
        return {"error": str(error)}
    return {
        "cuda": dict(counts["CUDAExecutionProvider"]),
        "cpu": dict(counts["CPUExecutionProvider"]),
        "cpu_nodes": left,
    }


def placed_nodes(path: str, options: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the provider, the operator and the name of every node of a session."""
    import onnxruntime as ort

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = ort.InferenceSession(path, options, providers=providers)
        for part in session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                yield part.ep_name, node.op_type, node.name
        return
    options.log_severity_level = 0  # releases before 1.24 tell in their log only
    with captured_errors() as log:
        ort.InferenceSession(path, options, providers=providers)
    yield from nodes_in_log(log[0])


@contextlib.contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Collect what is written to file descriptor 2, by native code too; the list is filled at the end."""
    text: list[str] = []
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


def nodes_in_log(log: str) -> Iterator[tuple[str, str, str]]:
    """Yield the provider, the operator and the name of every node, from a verbose log of ONNX Runtime."""
    provider = ""
    for line in log.splitlines():
        if " VerifyEachNodeIsAssignedToAnEp]" not in line:
            continue
        said = line.split(" VerifyEachNodeIsAssignedToAnEp]")[1].replace("\x1b[m", "").strip()
        if heading := re.match(r"(?:All nodes|Node\(s\)) placed on \[(\w+)\]", said):
            provider = heading[1]
        elif (node := re.fullmatch(r"(\w+) \((.*)\)", said)) and node[1] not in UNCOUNTED:
            yield provider, node[1], node[2]


def answer_lines(level: str) -> None:
    """Answer each path on stdin as soon as it is there: a caller with many questions starts one process for all."""
    for line in sys.stdin:
        path = line.removesuffix("\n")
        print(json.dumps({path: place(path, level)}), flush=True)


def restart_with_stand_ins() -> int:
    """Run this script again with the stand-in libraries preloaded; return its exit status."""
    environment = stand_in_environment(capi_folder())
    return subprocess.run([sys.executable, __file__, *sys.argv[1:]], check=False, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="or - alone: a path in each line of stdin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--level", choices=LEVELS, default="all")
    options = parser.parse_args()
    if STANDIN_VARIABLE not in os.environ:
        try:
            return restart_with_stand_ins()
        except CannotTell as error:
            print(f"placement.py: {error}", file=sys.stderr)
            return 3
    if options.models == ["-"]:
        answer_lines(options.level)
        return 0
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
