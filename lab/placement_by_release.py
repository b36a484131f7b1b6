#!/usr/bin/env python3
"""Convert models for several releases of ONNX Runtime, and see where each release places the result.

    python lab/placement_by_release.py FOLDER MODEL ... --release 1.20.2 --release 1.24.4

For each release, model and case (level auto and O2 in float16, O2 in bfloat16) the model is converted with `ort` set to
the release, unverified, and opened by the CUDA provider of that release (see `placement.py`). A session that is refused
although the source's is not, or a result with more nodes on the CPU than the source has there, is a fault; the exit
status is then 1. FOLDER keeps the unpacked wheels, 600 to 1000 MB each; those that are missing are downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import amp_transpiler
from kernel_dump import unpack

PLACEMENT = pathlib.Path(__file__).with_name("placement.py")
CASES = {"auto": {"level": "auto"}, "O2": {"level": "O2"}, "O2 bf16": {"level": "O2", "dtype": "bfloat16"}}


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """Where the nodes of one model are, or why it is refused."""

    refusal: str
    cuda: int
    cpu: int

    @classmethod
    def of(cls, result: dict[str, Any]) -> Placed:
        if "error" in result:
            return cls(result["error"].strip(), 0, 0)
        return cls("", sum(result["cuda"].values()), sum(result["cpu"].values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--release", action="append", required=True, metavar="VERSION", help="a version of the wheel")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    faults = 0
    for release in options.release:
        wheel = options.folder / release
        if not wheel.exists():
            unpack(release, options.folder)
        with tempfile.TemporaryDirectory(prefix="ort-placed-") as scratch:
            faults += check(release, wheel, options.models, pathlib.Path(scratch))
    print(f"{faults} faults")
    return 1 if faults else 0


def check(release: str, wheel: pathlib.Path, models: list[pathlib.Path], scratch: pathlib.Path) -> int:
    """Convert and place the models for one release; return the number of faults."""
    written: dict[tuple[pathlib.Path, str], pathlib.Path] = {}
    failed = 0
    for index, model in enumerate(models):
        for case, arguments in CASES.items():
            result = scratch / f"{index}-{case.replace(' ', '-')}.onnx"
            try:
                amp_transpiler.transpile(model, result, verify=False, ort=release, **arguments, prefer="size")  # type: ignore[arg-type]
            except amp_transpiler.AmpError as error:
                print(f"{release} {case} {model}: not converted: {error}")
                continue
            written[model, case] = result
    placed = place(wheel, [*models, *written.values()])
    totals = {case: [0, 0, 0, 0] for case in CASES}  # models, nodes on the CPU before and after, on CUDA after
    for (model, case), result in written.items():
        before, after = placed[model], placed[result]
        if before.refusal:
            # Opset or IR version may be too new for the release, or its own inference wrong: nothing to compare with.
            print(f"{release} {case} {model}: the source is refused ({before.refusal[:200]}); the result: {after}")
            continue
        if after.refusal or after.cpu > before.cpu:
            failed += 1
            print(f"FAULT {release} {case} {model}: {before.cpu} nodes on the CPU before, after: {after}")
        totals[case] = [a + b for a, b in zip(totals[case], (1, before.cpu, after.cpu, after.cuda), strict=True)]
    for case, (count, before_cpu, after_cpu, cuda) in totals.items():
        print(
            f"{release} {case}: {count} models, on the CPU {before_cpu} nodes before, {after_cpu} after; {cuda} on CUDA"
        )
    count, source = totals["auto"][:2]
    print(f"| {release} | {count} | {source} | " + " | ".join(str(total[2]) for total in totals.values()) + " |")
    return failed


def place(wheel: pathlib.Path, models: list[pathlib.Path]) -> dict[pathlib.Path, Placed]:
    """Ask the release in the folder `wheel` for the placement of models."""
    done = subprocess.run(
        [sys.executable, str(PLACEMENT), "--json", *map(str, models)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(wheel)},
    )
    if done.returncode:
        raise SystemExit(f"{wheel.name}: {done.stderr.strip()}")
    return {pathlib.Path(path): Placed.of(result) for path, result in json.loads(done.stdout).items()}


if __name__ == "__main__":
    sys.exit(main())
