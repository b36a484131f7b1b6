#!/usr/bin/env python3
"""Times the first minutes of a new user: a clone, then what the README says, in an environment without anything.

    python lab/first_minutes.py --write    # also write docs/benchmarks/first_minutes.md

Needs git, CPython and a package index, nothing of this project. The clone, the home folder, the virtual environment and
pip's cache are new and are deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "first_minutes.md"
_TABLE = re.compile(r"(?<=\| --- \| --- \| --- \|\n)(?:\|.*\n)+")

_SAMPLE = "models/rocm_convnet.onnx --inputs models/rocm_convnet.inputs.npz"
TUNE = f"amp-transpile {_SAMPLE} --tolerance 0.07% -o tuned.onnx"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="use this folder, and leave it as it is")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        rows = trial(options.keep.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = trial(pathlib.Path(folder))
    print("".join(rows), end="")
    if options.write:
        PAGE.write_text(_TABLE.sub("".join(rows), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def trial(folder: pathlib.Path) -> list[str]:
    """Do what the README says; return the rows of the table."""
    home, clone = folder / "home", folder / "clone"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}  # where the index is
    environment["PIP_CACHE_DIR"] = str(folder / "cache")
    total = wall = 0.0
    rows = []
    for what, command in steps(clone).items():
        before, start = _processor_time(), time.monotonic()
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, check=True, stdout=sys.stderr
        )
        total += _processor_time() - before
        wall += time.monotonic() - start
        rows.append(f"| {what} | {wall:.0f} | {total:.0f} |\n")
        print(rows[-1], end="", file=sys.stderr, flush=True)
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores", file=sys.stderr)
    return rows


def steps(clone: pathlib.Path) -> dict[str, str]:
    """Return what is reached -> the commands that lead there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = re.search(r"```sh\n(\S+)", readme)
    train = re.search(r"## Train\n.*?```python\n(.*?)```", readme, re.DOTALL)
    assert demo, "the README has no first block"
    assert train, "the README has no block about training"
    inside = f"cd {shlex.quote(str(clone))}"
    active = f"{inside}; . .venv/bin/activate"
    return {
        "a clone": f"git clone -q {shlex.quote(str(ROOT))} {shlex.quote(str(clone))}",
        "the first converted model": f"{inside}; {demo[1]}; test -f models/rocm_convnet.fp16.onnx",
        "a tuned one": f"{active}; {TUNE}; test -f tuned.onnx",
        "a trained one": f"{active}; python -c {shlex.quote(train[1])}",
    }


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
