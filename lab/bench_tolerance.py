#!/usr/bin/env python3
"""Ask for tolerances on every model, and hold the answers to a bisection by operator kind on the same data.

    python lab/bench_tolerance.py CORPUS --json FILE              # hours; what is in the file is not done again
    python lab/bench_tolerance.py CORPUS --json FILE --only silero
    python lab/bench_tolerance.py CORPUS --json FILE --largest 8  # models of at most 8 MB
    python lab/bench_tolerance.py CORPUS --json FILE --again      # asks again; the bisections of the file stay
    python lab/bench_tolerance.py CORPUS --json FILE --bisect     # only the bisections, each within --seconds
    python lab/bench_tolerance.py CORPUS --json FILE --write      # also writes docs/benchmarks/tolerance.md

The tolerances are 0.5, 0.1 and 0.02 of the error of level O2, emulated on the inputs of the corpus; where O2 becomes
infinite they are shares of 2 %. CORPUS is what `lab/fetch_corpus.py` and `lab/export_corpus.py` fill.

The bisection is what one does by hand. It begins with level O2. Each operator kind is made low alone, all else in
float32, and its error measured. Then the kinds become float32, that with the largest error first, one after the other,
until the bound holds. It converts, runs emulated and compares exactly as the search does. Where the bound does not hold
once no kind of them is low, its answer is float32 throughout.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench_cost import corpus_models, rows_of

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "tolerance.md"
SHARES = (0.5, 0.1, 0.02)
OBJECTIVES = ("low", "time")
MANY = 50  # nodes: in a smaller model there is often one answer, or none but float32
TRIED = 2000  # choices, of which all are tried
BASE = 0.02  # the error that shares are of where that of O2 is infinite
Record = dict[str, Any]


# ---- one model ----
class Bisection:
    """Conversions at level O2 in which the operator kinds that are named stay float32.

    Args:
        path: the model.
        inputs: its data.
        seconds: after which no further conversion is measured.
    """

    def __init__(self, path: pathlib.Path, inputs: pathlib.Path | None, seconds: float = math.inf) -> None:
        from amp_transpiler.conversion import fitted, prepare
        from amp_transpiler.files.loading import load
        from amp_transpiler.precision.ranges import RangeFaults
        from amp_transpiler.systems.choice import Request, choose_policy
        from amp_transpiler.verification.accuracy import make_reference
        from amp_transpiler.verification.conversions import Conversions, judging_arithmetic

        self._seconds, self._until = seconds, time.monotonic() + seconds
        source = load(path)
        self.prepared = source.clone()
        self.policy = fitted(choose_policy(Request(level="O2")), self.prepared)
        ranges = RangeFaults(self.policy.low)
        prepare(self.prepared, self.policy, ranges)
        reference = make_reference(source, self.prepared, inputs)
        arithmetic = judging_arithmetic(self.prepared, self.policy)
        self._conversions = Conversions(self.prepared, self.policy, ranges, reference, None, _untimed, arithmetic)
        self.samples = reference.samples
        self.runs = 0
        self._kind_of: dict[str, str] = {}
        self.o2 = self.measured(())
        self._kind_of = self._kinds_that_are_low()

    def measured(self, kinds: Iterable[str], tolerance: float = math.inf, **changes: Any) -> Any:
        """Return the conversion in which some kinds are float32, compared; with changes to the policy."""
        if time.monotonic() > self._until:
            raise TimeoutError(f"the bisection was not done after {self._seconds:g} s")
        self.runs += 1
        limits = dataclasses.replace(self.policy.limits, tolerance=tolerance)
        return self._conversions.measured(self._policy_with(kinds, limits=limits, **changes))

    def _kinds_that_are_low(self) -> dict[str, str]:
        from amp_transpiler.ops.names import operator_name

        decisions = self.o2.conversion.assignment.decisions
        return {
            str(node.name): operator_name(node) for node, decision in decisions.items() if decision.precision == "low"
        }

    def ranked(self) -> list[str]:
        """Return the kinds that are low at O2, that with the largest error alone first."""
        kinds = sorted(set(self._kind_of.values()))
        errors = {kind: _error(self.measured(other for other in kinds if other != kind)) for kind in kinds}
        return sorted(kinds, key=lambda kind: (-errors[kind], kind))

    def answers(self, tolerances: Sequence[float]) -> list[Record]:
        """Return the first conversion of the chain that keeps each tolerance; the tolerances fall."""
        ranked, choices, count = self.ranked(), [], 0
        for tolerance in tolerances:
            conversion = self.measured(ranked[:count], tolerance)
            while conversion.excess > 1.0 and count < len(ranked):
                count += 1
                conversion = self.measured(ranked[:count], tolerance)
            if conversion.excess > 1.0:  # nodes that are float32 at O2 can be low in what is left
                record = {**self.float32(), "worth": 0}
            else:
                record = {**self.record(conversion), "worth": self._worth_their_casts(ranked, count, tolerance)}
            choices.append({**record, "kinds": ranked[:count], "runs": self.runs})
        return choices

    def _worth_their_casts(self, ranked: Sequence[str], count: int, tolerance: float) -> int:
        """Return how many nodes are low where the same chain goes without islands that cost more casts than they save.

        What is left without the islands need not keep the bound: errors of islands may cancel others by chance. Then
        further kinds become float32.
        """
        conversion = self.measured(ranked[:count], tolerance, objective="low")
        while conversion.excess > 1.0 and count < len(ranked):
            count += 1
            conversion = self.measured(ranked[:count], tolerance, objective="low")
        return 0 if conversion.excess > 1.0 else int(self.record(conversion)["low"])

    def most(self, tolerance: float, above: int) -> int | None:
        """Return the most low nodes of all choices that are worth their casts and keep a tolerance; None if unknown.

        Args:
            tolerance: which is kept.
            above: a number of low nodes, which is returned if no choice has more. The choices that have more are tried,
                unless they are too many.
        """
        from amp_transpiler.precision.assign import open_choices
        from amp_transpiler.precision.evidence import Evidence
        from amp_transpiler.precision.frontier import Frontier

        policy = dataclasses.replace(self.policy, objective="low")
        opened = open_choices(self.prepared.model, policy, self._conversions.ranges)
        frontier = Frontier(opened.choices, opened.weights, Evidence(), {})
        free = opened.assignment(opened.choices.solve()).decisions
        fixed = sum(
            decision.precision == "low" and node.name not in frontier.open_names for node, decision in free.items()
        )
        every = worthwhile(frontier, TRIED, above + 1 - fixed)
        if every is None:
            return None
        limits = dataclasses.replace(policy.limits, tolerance=tolerance)
        for point in sorted(every, key=lambda point: -len(point.low)):
            held = _kept_float32(sorted(frontier.open_names - point.low))
            conversion = self._conversions.measured(dataclasses.replace(policy, limits=limits, forced_high=held))
            if conversion.excess <= 1.0 and (low := int(self.record(conversion)["low"])) > above:
                return low
        return above

    def _policy_with(self, kinds: Iterable[str], **changes: Any) -> Any:
        high = set(kinds)
        names = [name for name, kind in self._kind_of.items() if kind in high]
        return dataclasses.replace(self.policy, forced_high=_kept_float32(names), **changes)

    def float32(self) -> Record:
        """Return the figures of the program as it is."""
        from amp_transpiler.cost import find_device, predict

        milliseconds = predict(self.prepared.model, find_device(self.policy.device), {}, fuse=True).milliseconds
        return {"error": 0.0, "low": 0, "computing": 0, "casts": 0, "ms": milliseconds}

    def record(self, made: Any) -> Record:
        """Return the figures of a conversion."""
        from amp_transpiler.cost import find_device, predict

        made_by = made.conversion.assignment.decisions
        decisions = made_by.values()
        device = find_device(self.policy.device)
        return {
            "error": _finite(_error(made)),
            "low": sum(decision.precision == "low" for decision in decisions),
            "computing": sum(_computes(node) for node, decision in made_by.items() if decision.precision == "low"),
            "casts": made.conversion.casts,
            "ms": predict(made.program.model, device, {}, fuse=True).milliseconds,
        }


def worthwhile(frontier: Any, most: int, least: int = 0) -> list[Any] | None:
    """Return every choice in which no nodes are low that save less than their casts cost; None if they are many.

    The best part of some nodes holds that of any fewer of them, as is known of minimum cuts. So whatever is best of
    some nodes is found from the cheapest choice down, by leaving one node after the other out.

    Args:
        frontier: the choices of a program.
        most: how many there may be.
        least: nodes that are low in each.
    """
    points, waiting = {frontier.free: None}, [frontier.free]
    while waiting:
        low = waiting.pop().low
        for name in sorted(low):
            fewer = frontier.extended(frontier.exact, low - {name})
            if fewer not in points and len(fewer.low) >= least:
                points[fewer] = None
                waiting.append(fewer)
        if len(points) > most:
            return None
    return [point for point in points if len(point.low) >= least]


def _error(conversion: Any) -> float:
    from amp_transpiler.verification.search import worst_error

    return worst_error(conversion.outputs)


def _computing_operators() -> frozenset[str]:
    from amp_transpiler.ops.kinds import COMPUTE

    return frozenset(COMPUTE)


def _computes(node: Any) -> bool:
    from amp_transpiler.ops.names import operator_name

    return operator_name(node) in _computing_operators()


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


@contextlib.contextmanager
def _untimed(_phase: str) -> Iterator[None]:
    yield


def asked(path: pathlib.Path, samples: Any, tolerance: float, prefer: str) -> Record:
    """Return the answer of level auto."""
    import amp_transpiler as amp

    start = time.perf_counter()
    try:
        limit = tolerance if tolerance < 1.0 else f"{100 * tolerance!r}%"
        report = amp.transpile(path, inputs=samples, tolerance=limit, prefer=prefer)  # type: ignore[arg-type]
    except amp.CheckFailed as error:
        return {"kept": False, "why": str(error)[:200], "seconds": time.perf_counter() - start}
    worst = max((row.relative for row in report.outputs.values()), default=0.0)
    return {
        "kept": report.verdict_word in ("verified", "plausible"),
        "error": _finite(worst),
        "low": report.low_nodes,
        "computing": sum(
            row.precision in ("float16", "bfloat16") and row.op in _computing_operators() for row in report.decisions
        ),
        "nodes": report.low_nodes + report.high_nodes,
        "casts": report.casts,
        "ms": report.predicted_ms[1],
        "verdict": report.verdict[:120],
        "seconds": time.perf_counter() - start,
    }


def examine(
    path: pathlib.Path,
    inputs: pathlib.Path | None,
    known: Record,
    objectives: Sequence[str] = OBJECTIVES,
    seconds: float = math.inf,
) -> Record:
    """Return what is found on one model.

    Args:
        path: the model.
        inputs: its data.
        known: the bisection's part of a record, if there is one.
        objectives: what level auto is asked for.
        seconds: the most that the bisection may take.
    """
    bisection = Bisection(path, inputs, seconds)
    o2 = bisection.record(bisection.o2)
    if not o2["low"] or o2["error"] == 0.0:
        return {"o2": o2, "left out": "nothing is low at O2" if not o2["low"] else "O2 is exact"}
    base = BASE if o2["error"] is None else o2["error"]
    tolerances = [share * base for share in SHARES]
    if "bisection" in known and known["base"] == base:
        methods = {"o2": o2, "base": base, "bisection": known["bisection"]}
    else:
        methods = {"o2": o2, "base": base, "bisection": bisection.answers(tolerances)}
    for prefer in objectives:
        methods[prefer] = [asked(path, bisection.samples, tolerance, prefer) for tolerance in tolerances]
    if "low" in methods:
        methods["most"] = [
            bisection.most(tolerance, other["worth"]) if ours["low"] <= other["worth"] else None
            for tolerance, ours, other in zip(tolerances, methods["low"], methods["bisection"], strict=True)
        ]
    return methods


# ---- all models ----
def cases(everything: Mapping[str, Record]) -> Iterator[tuple[str, float, Record, Record, Record]]:
    """Yield model, share, and the answers of the bisection and of both objectives."""
    for name, record in everything.items():
        if "bisection" in record and "low" in record:
            for index, share in enumerate(SHARES):
                yield name, share, record["bisection"][index], record["low"][index], record["time"][index]


def misses(everything: Mapping[str, Record]) -> list[str]:
    """Return what does not reach the goals, in words."""
    missed = []
    for name, share, other, low, fast in cases(everything):
        for prefer, answer in (("low", low), ("time", fast)):
            if not answer["kept"]:
                missed.append(
                    f"{name} at {share}, prefer={prefer}: not kept: {answer.get('why') or answer.get('verdict')}"
                )
        if fast["kept"] and fast["ms"] is not None and fast["ms"] > other["ms"] * (1 + 1e-9):
            missed.append(f"{name} at {share}: {fast['ms']:.4f} ms, bisection {other['ms']:.4f} ms")
        if low["kept"] and low["low"] < other["low"]:
            missed.append(f"{name} at {share}: {low['low']} low nodes, bisection {other['low']}")
    return missed


def summary(everything: Mapping[str, Record]) -> list[list[str]]:
    """Return the table of what is reached, by the share that is asked for."""
    table = [["share of O2's error", "cases", "bound kept", "less time", "as much", "more"]]
    for share in SHARES:
        every = [case for case in cases(everything) if case[1] == share]
        holding = sum(low["kept"] and fast["kept"] for *_, low, fast in every)
        timed = [(fast["ms"], other["ms"]) for _, _, other, _, fast in every if fast["kept"] and fast["ms"] is not None]
        less = sum(ours < theirs * (1 - 1e-9) for ours, theirs in timed)
        slower = sum(ours > theirs * (1 + 1e-9) for ours, theirs in timed)
        table.append([f"{share:g}", *map(str, (len(every), holding, less, len(timed) - less - slower, slower))])
    return table


def low_table(everything: Mapping[str, Record]) -> list[list[str]]:
    """Return the table of low nodes by default: in how many cases more, as many and fewer than in the bisection."""
    most = {name: record.get("o2", {"low": 0})["low"] for name, record in everything.items()}
    every = [(name, low, other) for name, _, other, low, _ in cases(everything)]
    tried = {
        id(other): number
        for record in everything.values()
        for other, number in zip(record.get("bisection", ()), record.get("most", ()), strict=False)
    }
    some = [case for case in every if case[1]["low"] or case[2]["low"]]
    large = {name for name, low in most.items() if low >= MANY}
    kinds = {
        "all": every,
        "one of the two keeps a low node": some,
        f"of these, models with {MANY} low nodes at O2 or more": [case for case in some if case[0] in large],
        "of these, smaller models": [case for case in some if case[0] not in large],
        "more is possible": [case for case in some if case[2]["low"] < most[case[0]]],
        "more is possible than is worth its casts": [
            case for case in some if (case[1]["low"] or case[2]["worth"]) and case[2]["worth"] < most[case[0]]
        ],
    }
    kinds["of these, without those where both have the most that there can be"] = [
        case
        for case in kinds["more is possible than is worth its casts"]
        if not case[1]["low"] == case[2]["worth"] == tried.get(id(case[2]))
    ]
    table = [["low nodes, by default", "cases", "more", "as many", "fewer", "more, share"]]
    table[0] += ["more than worth their casts", "as many", "fewer", "more, share", "more that compute", "fewer"]
    for words, names in kinds.items():
        row = [words, str(len(names))]
        for field in ("low", "worth"):
            pairs = [(low["low"] if low["kept"] else -1, other[field]) for _, low, other in names]
            more, fewer = sum(ours > theirs for ours, theirs in pairs), sum(ours < theirs for ours, theirs in pairs)
            share = f"{more / len(pairs):.0%}" if pairs else ""
            row += [str(more), str(len(pairs) - more - fewer), str(fewer), share]
        pairs = [(low["computing"] if low["kept"] else -1, other["computing"]) for _, low, other in names]
        row += [str(sum(ours > theirs for ours, theirs in pairs)), str(sum(ours < theirs for ours, theirs in pairs))]
        table.append(row)
    return table


def model_table(everything: Mapping[str, Record]) -> list[list[str]]:
    """Return the table of models: low nodes and predicted times beside those of the bisection."""
    table = [["model", "O2's error", *(f"low nodes at {share:g}" for share in SHARES)]]
    table[0] += [f"ms at {share:g}" for share in SHARES]
    for name, record in everything.items():
        if "bisection" not in record:
            continue
        error = record["o2"]["error"]
        cells = [name, "infinite" if error is None else f"{100 * error:.2g} %"]
        pairs = list(zip(record["low"], record["bisection"], strict=True))
        cells += [
            f"{ours['low'] if ours['kept'] else '-'} / {theirs['low']} ({theirs['worth']})" for ours, theirs in pairs
        ]
        pairs = list(zip(record["time"], record["bisection"], strict=True))
        cells += [f"{ours['ms'] if ours['kept'] else math.nan:.3f} / {theirs['ms']:.3f}" for ours, theirs in pairs]
        table.append(cells)
    return table


INTRODUCTION = """# Tolerances

Written by `lab/bench_tolerance.py`. On each model tolerances of 0.5, 0.1 and 0.02 of the error of level O2 are
asked for (float16, on the inputs of the corpus), by default and with `--prefer time`. Beside it a bisection by operator
kind, as one does it by hand: from O2 on, kinds become float32, the one with the largest error alone first,
until the bound holds, converted, emulated and compared in the same way. Times are predicted (H100). These are
{models} of the {corpus} models of the corpus, small ones first.

"""


LOW_NODES = """The goal is strictly more low nodes than the bisection in 80 % of the cases. In small models the only
answer is often float32 on both sides, so there are several shares. More is possible where some node can be low within
the bound on either side, and the bisection does not have as many low nodes as O2. In the next row that is asked of
those of its nodes that are worth their casts. In the last row those cases are left out where both have the most that
there can be: where level auto has as many, all choices that are worth their casts and have more are converted, run
and compared, unless there are more than 2000 of them.

Level auto has fewer nodes mostly for one of five reasons. Some of the bisection's are islands that cost
more casts than they save, which level auto never has. For the columns "worth their casts" the same chain goes on
without islands until its bound holds again: without them errors can be larger, by chance. An operator stays float32 by
its nature inside loops, where the data cannot vouch for it (`scripted_loop`). Where an output is a single number
(`plcmos_v2`), large errors cancel by chance in one choice and not in others. A normalisation that is written out is low
as a whole or not at all (PP-OCR rec): ONNX Runtime does not fuse it in two precisions, which the bisection ignores. Or
the bound is spent on what computes (matrix products, convolutions), of which level auto wants the most, and not on more
cheap nodes: the last columns compare these.
"""


def page(everything: Mapping[str, Record], corpus: Sequence[str]) -> str:
    """Return the page.

    Args:
        everything: model -> what was found.
        corpus: the names of all models, small ones first.
    """
    everything = {name: everything[name] for name in corpus if {"low", "left out"} & {*everything.get(name, ())}}
    out = [f"{name} ({reason[:100]})" for name, record in everything.items() if (reason := record.get("left out"))]
    larger = [name for name in corpus if name not in everything]
    missed = [f"- {line}" for line in misses(everything)]
    return "\n".join(
        (
            INTRODUCTION.format(models=len(everything), corpus=len(corpus)) + rows_of(summary(everything)),
            "",
            LOW_NODES,
            rows_of(low_table(everything)),
            "",
            "Where a bound is not kept, where by default fewer nodes are low than in the bisection, and where with",
            "`--prefer time` the predicted time is longer:",
            "",
            *(missed or ["- nowhere"]),
            "",
            "Ours / bisection, model by model (in brackets: those of its low nodes that are worth their casts):",
            "",
            rows_of(model_table(everything)),
            "",
            f"Left out: {', '.join(out) or 'none'}.",
            "",
            f"Not asked, for the time that it takes: {', '.join(larger) or 'none'}.",
            "",
        )
    )


def read(path: pathlib.Path | None) -> dict[str, Record]:
    """Return the records of a file, one JSON object a line."""
    if path is None or not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {line["model"]: line for line in lines}


def size_of(path: pathlib.Path) -> int:
    """Return the bytes of a model, with its weights beside it."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def _kept_float32(names: Iterable[str]) -> dict[str, Any]:
    """Return nodes with the reason why a trial keeps them in float32."""
    from amp_transpiler.precision.reasons import Reason

    return dict.fromkeys(names, Reason("words", {"words": "bisection"}))


def main() -> int:
    """Ask what is wanted, and print what is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--json", type=pathlib.Path, help="one line a model; those that are there are not done again")
    parser.add_argument("--largest", type=float, default=math.inf, metavar="MB", help="of the files that are examined")
    parser.add_argument("--again", action="store_true", help="ask about models that are in the file, too")
    parser.add_argument("--bisect", action="store_true", help="do the bisections alone; level auto is asked later")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the most that a bisection may take")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    import amp_transpiler as amp
    from amp_transpiler.child_process.child import RUN_ERRORS
    from amp_transpiler.verification.accuracy import CannotCompare

    failing: tuple[type[Exception], ...] = (amp.AmpError, CannotCompare, TimeoutError, *RUN_ERRORS)
    everything = read(options.json)
    corpus = sorted(corpus_models(options.corpus), key=lambda row: size_of(row[1]))
    chosen = {row[1] for row in corpus_models(options.corpus, options.only) if size_of(row[1]) <= options.largest * 1e6}
    for name, path, inputs in (row for row in corpus if row[1] in chosen):
        known = everything.get(name, {})
        done = ("bisection" if options.bisect else "low") in known or "left out" in known
        if done and not options.again:
            continue
        start = time.perf_counter()
        try:
            record = examine(path, inputs, known, () if options.bisect else OBJECTIVES, options.seconds)
        except failing as error:  # it is named, and the others are examined
            record = {"left out": f"{type(error).__name__}: {error}".replace(f"{options.corpus}/", "")[:300]}
        record = {"model": name, **record, "seconds": time.perf_counter() - start}
        everything[name] = record
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        print(name, f"{record['seconds']:.0f} s", record.get("left out", ""), flush=True)
        print(*misses({name: record}), sep="\n", flush=True)
    print(rows_of(summary(everything)))
    print(rows_of(low_table(everything)))
    if options.write:
        PAGE.write_text(page(everything, [name for name, *_ in corpus]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
