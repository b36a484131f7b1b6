#!/usr/bin/env python3
"""Converts damaged models and looks for what must not happen: foreign exceptions, crashes, changed sources, leftovers.

    python lab/fuzz.py --count 100000 --seed 10 --jobs 2 --json OUT.json
    python lab/fuzz.py --seed 10 --index 4711 --keep FOLDER  # one mutant again; its files go to FOLDER
    python lab/fuzz.py --seed 10 --start 50000 --count 100000 # go on at mutant 50000

Mutants are made of small models of many forms and the committed ones, with --corpus also of a folder's. A mutant
depends on the run's seed, its number and the seed models alone. The first mutant of every cause is minimised and
written to --failures. Exit status 1 if there was a fault. Ctrl-C ends the run with the table of what was done.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import signal
import sys
import time
from collections.abc import Iterator

from fuzzing.attempt import write_mutant
from fuzzing.minimise import minimise
from fuzzing.mutations import draw
from fuzzing.outcomes import FAULTS, Outcome
from fuzzing.pool import TIMEOUT, Pool, Setup
from fuzzing.seeds import all_seeds
from fuzzing.summary import Summary
from fuzzing.worker import DOOR, outcome_record

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

_STEP = 1000  # mutants between two lines of progress


def main() -> int:
    options = _options()
    setup = Setup(
        run=options.seed,
        jobs=options.jobs,
        verified=options.verified,
        judged=options.judged,
        corpus=options.corpus,
        door=options.door,
        timeout=options.timeout,
    )
    if options.index is not None:
        return _one_mutant(setup, options.index, options.keep)
    return _many(setup, range(options.start, options.count), options.json, options.failures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the run (default 0)")
    parser.add_argument("--count", type=int, default=1000, help="mutants are numbered up to here (default 1000)")
    parser.add_argument("--start", type=int, default=0, metavar="I", help="the first mutant (default 0)")
    parser.add_argument("--index", type=int, metavar="I", help="run this mutant alone and print everything about it")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="with --index: write its files there")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--verified", type=float, default=0.5, metavar="SHARE", help="verify this share (default 0.5)")
    parser.add_argument("--judged", type=float, default=0.3, metavar="SHARE", help="judge this share of those (0.3)")
    parser.add_argument("--corpus", type=pathlib.Path, metavar="FOLDER", help="also start from models of this folder")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help="for one mutant (default 20)")
    parser.add_argument("--failures", type=pathlib.Path, metavar="FOLDER", help="write minimised faults there")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="write counts and faults there")
    parser.add_argument("--door", default=DOOR, metavar="MODULE:FUNCTION", help="what to call (default transpile)")
    return parser.parse_args()


def _one_mutant(setup: Setup, index: int, keep: pathlib.Path | None) -> int:
    drawn = draw(setup.run, index, all_seeds(setup.corpus))
    if keep is not None:
        write_mutant(drawn, keep)
    with Pool(setup) as pool:
        outcome = next(iter(pool.run([setup.task(index)])))
    print(json.dumps(outcome_record(outcome), indent=2))
    return 1 if outcome.kind in FAULTS else 0


def _many(setup: Setup, numbers: range, out: pathlib.Path | None, failures: pathlib.Path | None) -> int:
    print(f"seed {setup.run}, mutants {numbers.start} to {numbers.stop - 1}, {setup.jobs} workers", flush=True)
    summary, started = Summary(), time.monotonic()
    try:
        for outcome in _outcomes(setup, numbers):
            summary.add(outcome)
            if outcome.kind in FAULTS:
                print(f"{outcome.kind}, mutant {outcome.index}: {outcome.detail}  [{outcome.where}]", flush=True)
            if summary.total % _STEP == 0:
                rate = summary.total / (time.monotonic() - started)
                print(f"{summary.progress()}; {rate:.0f} a second", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    seconds = time.monotonic() - started
    print(f"\n{summary.markdown()}\n")
    print(f"{summary.total} mutants in {seconds:.0f} s; judged: {dict(summary.judged)}")
    for line in summary.fault_lines():
        print(line)
    if out is not None:
        _write_json(out, setup, numbers, summary, seconds)
    if failures is not None:
        for _, outcomes in summary.groups():
            minimise(setup, outcomes[0], failures)
    return 1 if summary.faults else 0


def _outcomes(setup: Setup, numbers: range) -> Iterator[Outcome]:
    with Pool(setup) as pool:
        yield from pool.run(map(setup.task, numbers))


def _write_json(out: pathlib.Path, setup: Setup, numbers: range, summary: Summary, seconds: float) -> None:
    import onnx
    import onnxruntime

    versions = {
        "python": platform.python_version(),
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    record = {
        "seed": setup.run,
        "start": numbers.start,
        "stop": numbers.stop,
        "jobs": setup.jobs,
        "verified": setup.verified,
        "seconds": round(seconds, 1),
        "versions": versions,
        **summary.as_dict(),
        "faults": [outcome_record(outcome) for outcome in summary.faults],
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no worker stays behind
    sys.exit(main())
