#!/usr/bin/env python3
"""Switches the heuristics of level auto off, one at a time, and counts what that loses.

    python lab/ablate_auto.py MODEL_OR_FOLDER... --json FILE          # a case that FILE holds is not run again
    python lab/ablate_auto.py MODEL_OR_FOLDER... --json FILE --ways float16/size,float16/time --shares 0.5,0.1
    python lab/ablate_auto.py --json FILE                             # prints the table again

A case is a model with its inputs (`NAME.inputs.npz` beside it), a format, a preference and a tolerance. That is a share
of the error of level O2, of 2 % where O2 overflows. Each is searched with everything on, then with each row of
HEURISTICS off. What loses no low nodes, holds no bound better and saves no time without it should go. A new heuristic
gets a row here, which says whether it pays.

All searches of a case share their measurements: a choice that was run counts for each, at the time that it took once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import json
import math
import pathlib
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Record = dict[str, Any]
SHARES = "0.5,0.1"
WAYS = "float16/size"
BASE = 0.02  # the error that shares are of where that of O2 is infinite
ALL = "all on"

# The name of a row -> (module, name in it, what stands there instead), for each thing that is switched off.
Switch = tuple[str, str, Any]
_SEARCH, _BOUND = "amp_transpiler.verification.search", "amp_transpiler.verification.bound_search"
_CONVERSIONS = "amp_transpiler.verification.conversions"
_FRONTIER, _ERRORS = "amp_transpiler.precision.frontier", "amp_transpiler.precision.output_errors"
HEURISTICS: dict[str, tuple[Switch, ...]] = {
    ALL: (),
    "the last repair": ((_SEARCH, "_Search._repair", lambda *_: None),),
    "bisection of what fails": ((_SEARCH, "_Search._culprits", lambda *arguments: arguments[1].low),),
    "holding nodes between two neighbours": ((_FRONTIER, "_HOLDS", 1),),
    "correction by what was measured": ((_FRONTIER, "Frontier.learn", lambda *_: None),),
    "luck clears nobody": ((_ERRORS, "_without_luck", list),),
    "moves round nothing": (
        (_FRONTIER, "_origins", lambda _: {}),
        (_FRONTIER, "_rounds_nothing", lambda _: False),
    ),
    "less is asked for after a failure": ((_BOUND, "_WARIER", 1.0),),
    "less than the bound is asked for": ((_BOUND, "_NEARER", 1.0),),
}


def main() -> int:
    options = _options()
    records = _read(options.json)
    searched = {_case(record) for record in records}
    shares, ways = map(float, options.shares.split(",")), [way.split("/") for way in options.ways.split(",")]
    asked = itertools.product(_models(options.models), ways, [[*shares]])
    with options.json.open("a", encoding="utf-8") as out:
        for model, (dtype, prefer), wanted in asked:
            for record in _searched(model, dtype, prefer, wanted, searched):
                records.append(record)
                out.write(json.dumps(record) + "\n")
                out.flush()
    print("\n".join(table(records)))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, nargs="*")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--shares", default=SHARES)
    parser.add_argument("--ways", default=WAYS, help="FORMAT/PREFERENCE, several with commas")
    return parser.parse_args()


def _read(file: pathlib.Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _models(paths: Sequence[pathlib.Path]) -> Iterator[pathlib.Path]:
    for path in paths:
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def _case(record: Record) -> tuple[Any, ...]:
    return record["model"], record["dtype"], record["prefer"], record["share"]


# ---- one model ----
def _searched(
    model: pathlib.Path, dtype: str, prefer: str, shares: Sequence[float], searched: set[tuple[Any, ...]]
) -> Iterator[Record]:
    """Yield a record for each tolerance and each row of HEURISTICS, as far as there is anything to search for."""
    name = "/".join(model.parts[-2:])
    wanted = [share for share in shares if (name, dtype, prefer, share) not in searched]
    if not wanted or (question := _question(model, dtype, prefer)) is None:
        return
    conversions, error = question
    shared = Shared()
    with switched(shared.switches()):
        for share in wanted:
            limits = dataclasses.replace(conversions.policy.limits, tolerance=share * error, outputs={})
            policy = dataclasses.replace(conversions.policy, limits=limits)
            asked = dataclasses.replace(conversions, policy=policy)
            case = {"model": name, "dtype": dtype, "prefer": prefer, "share": share}
            for heuristic, switches in HEURISTICS.items():
                record = {**case, "off": heuristic, **_answer(asked, switches, shared)}
                yield record
                if heuristic == ALL and not record["searched"]:
                    break


def _question(model: pathlib.Path, dtype: str, prefer: str) -> tuple[Any, float] | None:
    """Return what level auto searches in, and the error of level O2; None if there is nothing to search for."""
    import amp_transpiler as amp
    from amp_transpiler.verification import search

    inputs = model.with_suffix(".inputs.npz")
    chosen: dict[str, Any] = {"inputs": inputs if inputs.exists() else None, "dtype": dtype}
    try:
        report = amp.transpile(model, None, level="O2", **chosen)
    except amp.CheckFailed as failure:
        report = failure.report
    except amp.AmpError as failure:
        print(f"{model}: {failure}", file=sys.stderr)
        return None
    error = search.worst_error({row.name: row for row in report.outputs.values()})
    caught: list[Any] = []
    plain = search.best_conversion

    def catching(conversions: Any, *rest: Any, **options: Any) -> Any:
        caught.append(conversions)
        return plain(conversions, *rest, **options)

    with switched(((_SEARCH, "best_conversion", catching),)), contextlib.suppress(amp.CheckFailed):
        amp.transpile(model, None, **chosen, prefer=prefer, tolerance=0.99, cache=False)  # type: ignore[arg-type]  # a word
    if not caught or error == 0.0:
        return None
    return caught[0], error if math.isfinite(error) else BASE


def _answer(conversions: Any, switches: Sequence[Switch], shared: Shared) -> Record:
    from amp_transpiler.cost import find_device, predict
    from amp_transpiler.verification import search

    report: Any = types.SimpleNamespace(notes=(), warnings=())  # all that a search writes
    shared.taken, shared.measured, shared.runs = 0.0, 0.0, 0
    start = time.perf_counter()
    with switched(switches):
        answer = search.best_conversion(conversions, report, frontier=False, cache=False, limited=True)
    seconds = time.perf_counter() - start - shared.taken
    best = answer.best
    precisions = [decision.precision for decision in best.conversion.assignment.decisions.values()]
    return {
        "low": precisions.count("low"),
        "nodes": len(precisions) - precisions.count("untouched"),
        "ms": predict(best.program.model, find_device(conversions.policy.device), {}, fuse=True).milliseconds,
        "excess": best.excess if math.isfinite(best.excess) else None,
        "searched": answer.searched,
        "runs": shared.runs,
        "seconds": seconds,
        "run_seconds": shared.measured,
    }


@contextlib.contextmanager
def switched(switches: Sequence[Switch]) -> Iterator[None]:
    """Put other things in the place of some, for a while."""
    with contextlib.ExitStack() as stack:
        for module, path, instead in switches:
            *owners, name = path.split(".")
            owner = importlib.import_module(module)
            for each in owners:
                owner = getattr(owner, each)
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, instead)
        yield


class Shared:
    """Runs each choice once for all searches of a model.

    Attributes:
        taken: seconds that went into runs in truth.
        measured: seconds that they would have taken if no search had shared them.
        runs: how many choices were run.
    """

    def __init__(self) -> None:
        self.taken, self.measured, self.runs = 0.0, 0.0, 0
        self._answers: dict[Any, tuple[Any, float]] = {}

    def once(self, key: Any, ask: Callable[[], Any], *, counts: bool = False) -> Any:
        """Return an answer, and note the seconds of it where it counts as a run."""
        start = time.perf_counter()
        if key not in self._answers:
            answer = ask()
            self._answers[key] = answer, time.perf_counter() - start
        self.taken += time.perf_counter() - start
        if counts:
            self.measured += self._answers[key][1]
            self.runs += 1
        return self._answers[key][0]

    def switches(self) -> tuple[Switch, ...]:
        """Return what is put in the place of what runs."""
        from amp_transpiler.verification import search
        from amp_transpiler.verification.conversions import Conversions

        plain = {name: getattr(Conversions, name) for name in ("measured", "confirmed", "beside_worst")}
        plain |= {name: getattr(search, name) for name in ("_evidence", "_ranges_seen")}

        def measured(asked: Any, policy: Any, **how: Any) -> Any:
            settled = frozenset((name, decision.precision) for name, decision in policy.settled.items())
            said = policy.objective, policy.numerics, policy.limits.tolerance, policy.evidence is None
            key = settled, said, tuple(sorted(how.items())), id(asked.reference)
            return self.once(key, lambda: plain["measured"](asked, policy, **how), counts=True)

        def confirmed(asked: Any, judged: Any) -> Any:
            if judged.confirmed:
                return judged
            # The pair keeps what was judged, and with it the number that stands for it.
            key = "confirmed", id(judged), id(asked.reference)
            return self.once(key, lambda: (plain["confirmed"](asked, judged), judged), counts=True)[0]

        def beside_worst(asked: Any, judged: Any) -> Any:
            other = self.once(("beside", judged.worst), lambda: plain["beside_worst"](asked, judged))
            return asked.at(other.reference)

        def evidence(asked: Any, *rest: Any, **how: Any) -> Any:
            return self.once(("evidence", id(asked.reference)), lambda: plain["_evidence"](asked, *rest, **how))

        def ranges(asked: Any, *rest: Any) -> Any:
            return self.once(("ranges", id(asked.reference)), lambda: plain["_ranges_seen"](asked, *rest))

        return (
            (_CONVERSIONS, "Conversions.measured", measured),
            (_CONVERSIONS, "Conversions.confirmed", confirmed),
            (_CONVERSIONS, "Conversions.beside_worst", beside_worst),
            (_SEARCH, "_evidence", evidence),
            (_SEARCH, "_ranges_seen", ranges),
        )


# ---- the table ----
def table(records: Sequence[Record]) -> list[str]:
    """Return the rows of the table: what is lost where a heuristic is off, as shares of the answers with all on."""
    base = {_case(record): record for record in records if record["off"] == ALL and record["searched"]}
    rows = [f"{len(base)} cases of {len({case[0] for case in base})} models were searched.", ""]
    rows += [
        "| off | low nodes | cases with fewer | with more | bounds lost | conversions | own time | time with runs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for heuristic in HEURISTICS:
        pairs = [(base[_case(r)], r) for r in records if r["off"] == heuristic and _case(r) in base]
        if pairs:
            rows.append(f"| {heuristic} | {' | '.join(_cells(pairs))} |")
    return rows


def _cells(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    def share(*keys: str) -> str:
        before, after = (sum(pair[side][key] for pair in pairs for key in keys) for side in (0, 1))
        return f"{after / before:.1%}" if before else "-"

    return [
        share("low"),
        str(sum(after["low"] < before["low"] for before, after in pairs)),
        str(sum(after["low"] > before["low"] for before, after in pairs)),
        str(sum(_holds(before) and not _holds(after) for before, after in pairs)),
        share("runs"),
        share("seconds"),
        share("seconds", "run_seconds"),
    ]


def _holds(record: Record) -> bool:
    return record["excess"] is not None and record["excess"] <= 1.0


if __name__ == "__main__":
    sys.exit(main())
