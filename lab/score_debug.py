#!/usr/bin/env python3
"""Scores `amp_transpiler.debug` on planted faults: guilty nodes named, smallest cures, passes, seconds.

    python lab/score_debug.py CASES                    # a folder that lab/plant_faults.py has written
    python lab/score_debug.py CASES --only wrong_cast --json OUT.json

A row a case of inference: the node that is guilty, the one that was named, nodes of the cure beside the smallest known
one, passes over the data, seconds. Cases of training are diagnosed by `paddle.amp.debugging.diagnose_training`: whether
the loss scale is named. Exit status 1 if anything that is guilty was not named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]

Diagnose = Callable[..., Any]
"""`amp_transpiler.debug`: float32, low or None, and keywords; it returns guilty, cure and passes."""


@dataclasses.dataclass(frozen=True)
class Score:
    """What came of a case.

    Attributes:
        case: its folder's name.
        guilty: the nodes any of which is right.
        named: the node that was named; None for none.
        smallest: the size of the smallest cure; None if it is not known.
        cure: the size of the cure that was offered; None for none.
        cured: whether its error is within the limit.
        passes: over the data.
        seconds: of the call.
        failure: why there is no diagnosis; empty if there is one.
    """

    case: str
    guilty: tuple[str, ...]
    named: str | None
    smallest: int | None
    cure: int | None
    cured: bool
    passes: int
    seconds: float
    failure: str = ""

    @property
    def is_right(self) -> bool:
        """Whether a guilty node was named."""
        return self.named in self.guilty

    @property
    def is_smallest(self) -> bool:
        """Whether the cure is one, and no larger than the smallest known."""
        return self.cured and self.cure is not None and self.smallest is not None and self.cure <= self.smallest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("--only", metavar="WORD", default="", help="cases whose name holds a word")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="write the rows there")
    options = parser.parse_args()
    import amp_transpiler

    diagnose: Diagnose = amp_transpiler.debug
    scores = []
    for folder in folders(options.cases, options.only):
        scores.append(score(folder, diagnose))
        print(line_of(scores[-1]), flush=True)
    training = {folder.name: names_scale(folder) for folder in training_folders(options.cases, options.only)}
    for case, is_right in training.items():
        print(f"{case:48.48} {'right' if is_right else 'WRONG'}  the loss scale", flush=True)
    print(*summary_of(scores), sep="\n")
    if training:
        print(f"loss scale named in training: {sum(training.values())} of {len(training)}")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in scores], indent=1) + "\n", "utf-8")
    return int(not all((*(row.is_right for row in scores), *training.values())))


def folders(cases: pathlib.Path, only: str = "") -> list[pathlib.Path]:
    """List the folders of the cases of inference, in order."""
    return sorted(path.parent for path in cases.glob("*/float32.onnx") if only in path.parent.name)


def training_folders(cases: pathlib.Path, only: str = "") -> list[pathlib.Path]:
    """List the folders of the cases of training, in order."""
    with_truth = (path.parent for path in cases.glob("*/truth.json") if only in path.parent.name)
    return sorted(folder for folder in with_truth if not (folder / "float32.onnx").exists())


def names_scale(folder: pathlib.Path) -> bool:
    """Diagnose a training step, and return whether a gradient is blamed that overflows at its loss scale, and only so.

    All gradients overflow at such a scale, so that of any parameter is right.
    """
    import numpy as np

    from amp_transpiler import paddle
    from amp_transpiler.paddle import static
    from planted_faults.training import build

    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    training = build(truth["network"], truth["scale"])
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(training.startup, scope=scope)
    training.optimizer.amp_init(paddle.CPUPlace(), scope)
    with np.load(folder / "inputs.npz") as batch:
        feeds = [dict(batch)]
    diagnosis = paddle.amp.debugging.diagnose_training(
        training.main, feeds, loss=training.loss, scope=scope, executor=executor
    )
    return [fault.kind for fault in diagnosis.faults[:1]] == ["overflow"]


def score(folder: pathlib.Path, diagnose: Diagnose) -> Score:
    """Diagnose a case and compare with the truth."""
    from amp_transpiler.errors import AmpError

    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    low = folder / "low.onnx"
    begun = time.monotonic()
    diagnosis, failure = None, ""
    try:
        diagnosis = diagnose(
            str(folder / "float32.onnx"),
            str(low) if low.exists() else None,
            inputs=str(folder / "inputs.npz"),
            dtype=truth["dtype"],
            level=truth["level"],
            tolerance=truth["limit"],
        )
    except AmpError as error:
        failure = str(error).splitlines()[0]
    seconds = time.monotonic() - begun
    guilty = None if diagnosis is None else diagnosis.guilty
    cure = None if diagnosis is None else diagnosis.cure
    return Score(
        case=folder.name,
        guilty=tuple(truth["guilty"]),
        named=None if guilty is None else guilty.node,
        smallest=None if truth["cure"] is None else len(truth["cure"]),
        cure=None if cure is None else len(cure.nodes),
        cured=cure is not None and cure.error <= truth["limit"],
        passes=0 if diagnosis is None else diagnosis.passes,
        seconds=seconds,
        failure=failure,
    )


def line_of(row: Score) -> str:
    """Return a row of the table."""
    if row.failure:
        return f"{row.case:48.48} WRONG  {row.failure}"
    verdict = "right" if row.is_right else "WRONG"
    expected = "" if row.is_right else f" (expected {' or '.join(row.guilty)})"
    cure = "none" if row.cure is None else f"{row.cure}{'' if row.cured else ', no cure'}"
    smallest = "?" if row.smallest is None else row.smallest
    measured = f"cure {cure} of {smallest}, {row.passes} passes, {row.seconds:.1f} s"
    return f"{row.case:48.48} {verdict}  {row.named}{expected}; {measured}"


def summary_of(scores: Sequence[Score]) -> Iterator[str]:
    """Yield the sums."""
    searched = [row for row in scores if row.smallest is not None]
    yield f"\nguilty node named: {sum(row.is_right for row in scores)} of {len(scores)}"
    yield f"cured: {sum(row.cured for row in scores)} of {len(scores)}"
    yield f"smallest cure: {sum(row.is_smallest for row in searched)} of {len(searched)} for which it is known"
    yield f"most passes: {max((row.passes for row in scores), default=0)}"
    seconds = [row.seconds for row in scores]
    yield f"seconds: {sum(seconds):.1f}, at most {max(seconds, default=0):.1f}"


if __name__ == "__main__":
    sys.exit(main())
