"""Mutation testing: changes one small thing in a module and sees whether the nearest fast tests notice.

    lab/mutate                          a sample of every module of lab/mutation/modules.toml
    lab/mutate precision/quantized_islands --count 40
    lab/mutate files/saving --again     once more what survived, after new tests
    lab/mutate --report                 no run: the table of what is recorded, also into the files

The tests run in a scratch copy of the tree. Outcomes are recorded in the state folder, and a mutant with a recorded
outcome is not run again, so a run can be stopped with Ctrl-C and continued. A mutant that no test can see is named in
lab/mutation/equivalent.toml. Needs the extra `mutation`: scripts/setup test mutation. Exit status 1 if a mutant
survived.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing.pool
import pathlib
import queue
import sys
import threading
from typing import Any

from mutation.coverage import Coverage
from mutation.mutants import Mutant, all_mutants, changed_lines, drawn
from mutation.record import Fate, Record
from mutation.report import score, survivors, table
from mutation.scratch import Scratch
from mutation.tables import ROOT, SURVIVORS, Module, equivalents, modules, stale

_REPORT = ROOT / "docs" / "evidence" / "mutation.md"
_MARK = "<!-- table: lab/mutate --report -->\n"
_SEED = 11
_COUNT = 20


def main() -> int:
    options = _options()
    chosen = [module for module in modules() if not options.module or module.name in options.module]
    unknown = set(options.module) - {module.name for module in chosen}
    if unknown:
        known = ", ".join(module.name for module in modules())
        print(f"mutate: unknown module {', '.join(sorted(unknown))} (known: {known})", file=sys.stderr)
        return 2
    for entry in stale(equivalents()):
        print(f"mutate: equivalent.toml: {entry.module} has this line no more: {entry.line}", file=sys.stderr)
    options.state.mkdir(parents=True, exist_ok=True)
    record = Record(options.state)
    count = None if options.all else options.count
    try:
        if not options.report:
            _judge_all(chosen, record, options, count)
    except KeyboardInterrupt:
        print("mutate: stopped; the same command goes on", file=sys.stderr)
        return 130
    rows = [_row(module, record, options.seed, count) for module in chosen]
    print("\n" + table(rows))
    if options.report:
        head, mark, _ = _REPORT.read_text(encoding="utf-8").partition(_MARK)
        assert mark, f"{_REPORT} has lost the line {_MARK}"
        _REPORT.write_text(head + mark + "\n" + table(rows), encoding="utf-8")
        SURVIVORS.write_text(survivors(rows, options.seed), encoding="utf-8")
    return int(any(fate.outcome == "survived" for _, fates, _ in rows for fate in fates))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="*", help="such as precision/quantized_islands (default: all)")
    parser.add_argument("--seed", type=int, default=_SEED, help=f"of the sample (default {_SEED})")
    parser.add_argument("--count", type=int, default=_COUNT, help=f"mutants of a module (default {_COUNT})")
    parser.add_argument("--all", action="store_true", help="every mutant instead of a sample")
    parser.add_argument("--again", action="store_true", help="run recorded survivors and timeouts once more")
    parser.add_argument(
        "--trust", action="store_true", help="do not look once more at changed test files; their new tests run first"
    )
    parser.add_argument("--report", action="store_true", help="run nothing; write the table and the list of survivors")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="at the same time (default 1)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds beyond ten times the usual (default 60)")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "build" / "mutation", help="folder of the record")
    return parser.parse_args()


class _Run:
    """What every module of a run shares."""

    def __init__(
        self,
        scratches: list[Scratch],
        coverage: Coverage,
        record: Record,
        options: argparse.Namespace,
        count: int | None,
    ) -> None:
        self.coverage, self.record, self.options, self.count = coverage, record, options, count
        self.pool = multiprocessing.pool.ThreadPool(len(scratches))
        self.first = scratches[0]
        self._looking = threading.Lock()
        self._free: queue.Queue[Scratch] = queue.Queue()
        for scratch in scratches:
            self._free.put(scratch)

    def judge(self, module: Module, mutant: Mutant, source: str) -> Fate:
        mutated = mutant.applied(source)
        assert mutated is not None, "such ones are not drawn"
        scratch = self._free.get()
        try:
            near = self.coverage.nearest(module, mutant)
            answer = self._ask(scratch, module.path, mutated, *near, others=self.options.trust)
            if answer["outcome"] == "survived" and module.wider:
                with self._looking:
                    self.coverage.look(module.wider, scratch)
                wide = self.coverage.wider(module, mutant)
                answer = self._ask(scratch, module.path, mutated, *wide, others=False)
        finally:
            self._free.put(scratch)
        before, after = changed_lines(source, mutated)
        return Fate(module.name, mutant.name, mutant.function, before, after, mutant.operator, **answer)

    def _ask(
        self, scratch: Scratch, path: str, mutated: str, tests: list[str], usual: float, *, others: bool
    ) -> dict[str, Any]:
        timeout = 10 * usual + self.options.timeout
        return scratch.ask(path=path, text=mutated, tests=tests, timeout=timeout, others=others)


def _judge_all(chosen: list[Module], record: Record, options: argparse.Namespace, count: int | None) -> None:
    with contextlib.ExitStack() as stack:
        scratches = [stack.enter_context(Scratch.opened()) for _ in range(options.jobs)]
        run = _Run(scratches, Coverage(options.state, modules(), trust=options.trust), record, options, count)
        for module in chosen:
            _run(module, run)


def _run(module: Module, run: _Run) -> None:
    """Judge the mutants of a module that have no outcome yet."""
    path = ROOT / module.path
    source = path.read_text(encoding="utf-8")
    run.coverage.look(module.tests, run.first)
    known = _equivalent_changes(module)

    def fate(mutant: Mutant) -> tuple[Mutant, Fate] | None:
        before = run.record.get(module.name, mutant.name)
        if before and not (run.options.again and before.outcome in {"survived", "timeout"}):
            return None
        if before and (before.line, before.mutated) in known:
            return None
        return mutant, run.judge(module, mutant, source)

    sample = drawn(all_mutants(path)[0], source, module.name, run.options.seed, run.count)
    for outcome in run.pool.imap(fate, sample):
        if outcome:
            mutant, new = outcome
            run.record.add(new)
            _tell(module, mutant, new)
    fates = _row(module, run.record, run.options.seed, run.count)[1]
    print(f"{module.name}: {score(fates)} of {len(fates)}", flush=True)


def _tell(module: Module, mutant: Mutant, fate: Fate) -> None:
    print(f"{fate.outcome:9} {module.path}:{mutant.line} {fate.operator} {fate.seconds} s {fate.test}", flush=True)
    if fate.outcome in {"survived", "timeout"}:
        print("".join(f"  - {line}\n" for line in fate.line.splitlines()), end="")
        print("".join(f"  + {line}\n" for line in fate.mutated.splitlines()), end="", flush=True)


def _equivalent_changes(module: Module) -> set[tuple[str, str]]:
    return {(entry.line, entry.mutated) for entry in equivalents() if entry.module == module.name}


def _row(module: Module, record: Record, seed: int, count: int | None) -> tuple[Module, list[Fate], str]:
    """Return the recorded fates of the sample, and the number of all mutants that no rule leaves out."""
    path = ROOT / module.path
    mutants, _ = all_mutants(path)
    known = _equivalent_changes(module)
    fates = []
    for mutant in drawn(mutants, path.read_text(encoding="utf-8"), module.name, seed, count):
        fate = record.get(module.name, mutant.name)
        if fate is not None:
            named = fate.outcome == "survived" and (fate.line, fate.mutated) in known
            fates.append(Fate(**fate.__dict__ | {"outcome": "equivalent"}) if named else fate)
    return module, fates, str(len(mutants))
