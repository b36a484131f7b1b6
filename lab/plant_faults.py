#!/usr/bin/env python3
"""Plants faults of 16-bit arithmetic into real models, each with the truth beside it: the test bed of a debugger.

    python lab/plant_faults.py --seed 36 --count 30 --corpus CORPUS OUT
    python lab/plant_faults.py --seed 36 --kind wrong_cast --count 3 OUT   # cases of one kind

OUT/<number>_<kind>_<model>/ holds `float32.onnx`, `low.onnx` where another tool made the 16-bit model, `inputs.npz` and
`truth.json`; a fault of training has no files of models, but the call that builds its program. Every fault is proven:
it bites in 16 bits, and not without the plant; otherwise another place is drawn. A case depends on the seed, the models
and the cases before it only. Without --corpus the models of `models/` and the small graphs of
`planted_faults/small_nets.py` are drawn; the default draws are seeds 36 and 37, 30 cases each, with a corpus.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np

from planted_faults.kinds import KINDS
from planted_faults.planting import Case, draw_case, write
from planted_faults.sources import sources
from planted_faults.training import TRAINING, training_truth

_MOST_OF_A_MODEL = 4  # cases of one run


def main() -> int:
    options = _options()
    models = [[source for source in group if not source.fault] for group in sources(options.corpus)]
    if options.corpus is None:
        print("no --corpus: only small graphs and the repository's models are drawn")
    repeated: collections.Counter[str] = collections.Counter()
    planted: list[tuple[str, str]] = []
    started = time.monotonic()
    for number, kind in enumerate(_kinds(options.seed, options.count, options.kind)):
        if kind == TRAINING:
            truth, feed = training_truth(options.seed, number)
            case = Case(None, None, feed, truth, {})
        else:
            case = draw_case(kind, (options.seed, number), models, _used(kind, planted))
        planted.append((kind, case.truth["model"]))
        write(case, options.out / f"{number:02}_{kind}_{case.truth['model']}")
        repeated.update(case.repeated)
        print(f"{number:02} {_line(case)}", flush=True)
    print(f"{options.count} cases in {time.monotonic() - started:.0f} s, {sum(repeated.values())} draws repeated:")
    for reason, count in repeated.most_common():
        print(f"  {count:4} {reason}")
    return 0


def _used(kind: str, planted: Sequence[tuple[str, str]]) -> set[str]:
    """Return the models that have had a fault of a kind, or enough of all."""
    counts = collections.Counter(model for _, model in planted)
    often = {model for model, count in counts.items() if count >= _MOST_OF_A_MODEL}
    return often | {model for earlier, model in planted if earlier == kind}


def _line(case: Case) -> str:
    truth = case.truth
    if case.float32 is None:
        return f"{truth['kind']:22} {truth['model']:28} scale {truth['scale']:.3g}, losses {truth['losses']}"
    error = truth["error_without"]
    shown = [
        f"{truth['kind']:22} {truth['model']:28.28} {truth['variant']:18.18} {truth['dtype']}",
        truth["converter"] or "converted by the debugger",
        *(["renamed"] if truth["renamed"] else []),
        f"error {error if isinstance(error, str) else format(error, '.2%')}",
        *([] if truth["cure"] is None else [f"cure of {len(truth['cure'])}"]),
        f"{sum(case.repeated.values())} draws repeated",
    ]
    return ", ".join(shown)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=36, help="of the draw (default 36)")
    parser.add_argument("--count", type=int, default=30, help="cases (default 30)")
    parser.add_argument("--corpus", type=pathlib.Path, metavar="ROOT", help="also plant into models of this corpus")
    parser.add_argument("--kind", choices=[*KINDS, TRAINING], help="plant this kind only")
    return parser.parse_args()


def _kinds(seed: int, count: int, kind: str | None) -> list[str]:
    """Return the kind of each case: all of them equally often, in an order that the seed draws."""
    if kind is not None:
        return [kind] * count
    draw, every, kinds = np.random.default_rng(seed), [*KINDS, TRAINING], list[str]()
    while len(kinds) < count:
        kinds += [every[index] for index in draw.permutation(len(every))]
    return kinds[:count]


if __name__ == "__main__":
    sys.exit(main())
