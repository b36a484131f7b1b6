#!/usr/bin/env python3
"""Counts the verdicts over a corpus at auto, O1 and O2, each judged again by the tests' oracle.

    python lab/corpus_verdicts.py CORPUS                                        # writes docs/evidence/verdicts.md
    python lab/corpus_verdicts.py CORPUS --output FILE --dtype bfloat16 --jobs 2

`lab/fetch_corpus.py CORPUS` fills the folder. It runs `tests/corpus/test_models.py`, so it also fails where those
tests do: exit status 1 if a conversion is invalid, worse than recorded, or its verdict contradicted.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "evidence" / "verdicts.md")
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "both"], default="float16")
    parser.add_argument("--jobs", default="auto", help="processes (default: one a core)")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pytest", "tests/corpus/test_models.py", "-q", "-m", "slow", "--all-cases"]
    command += ["-n", options.jobs]
    # The exported models are left out: they depend on the exporter's version.
    chosen = "test_converts and shipped" + {"float16": " and not bfloat16", "bfloat16": " and bfloat16"}.get(
        options.dtype, ""
    )
    command += ["-k", chosen, "--corpus", str(options.corpus), "--verdicts", str(options.output.resolve())]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
