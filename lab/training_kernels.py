#!/usr/bin/env python3
"""Compare the kernels of training steps, ours by the price list with PyTorch's that were measured.

    python lab/training_kernels.py                       # the tables, as text: three minutes on two cores
    python lab/training_kernels.py --write               # also writes docs/benchmarks/training_kernels.md
    python lab/training_kernels.py --networks raf --small

Ours are the kernels of the graph that ONNX Runtime's CUDA provider makes of a step, on stand-ins for CUDA's libraries
(`lab/launches.py`). PyTorch's are the costliest of the first run on an H100, `docs/benchmarks/gpu/`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

from programs.kernels_page import CASES, page, tables

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "training_kernels.md"
MEASURED = LAB.parent / "docs" / "benchmarks" / "gpu" / "2026-11-26-h100.jsonl"


def kernels(network: str, level: str, dtype: str, *, tiny: bool) -> list[list[object]]:
    """Return the kinds of kernels of a step, priced in a child."""
    child = [str(LAB / "programs" / "step_kernels.py"), network, level, dtype, *(["small"] if tiny else [])]
    command = [sys.executable, str(LAB / "launches.py"), "run", *child]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LAB.parent), str(LAB)])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit status {done.returncode}:\n{done.stderr[-2000:]}")
    rows: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted({case.network for case in CASES})
    parser.add_argument("--networks", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/training_kernels.md")
    options = parser.parse_args()
    measured = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    chosen = [case for case in CASES if case.network in options.networks]
    steps = [(case, kernels(case.network, case.level, case.dtype, tiny=options.small)) for case in chosen]
    print(tables(steps, measured))
    if options.write:
        PAGE.write_text(page(steps, measured), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
