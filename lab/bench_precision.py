#!/usr/bin/env python3
"""Level auto beside O1, O2 and today's converters, model by model: casts, launches, predicted time, error, search time.

    python lab/bench_precision.py CORPUS --json FILE                    # every model of the corpus: hours
    python lab/bench_precision.py CORPUS --json FILE --only bert        # models whose path holds a word
    python lab/bench_precision.py CORPUS --json FILE --forms auto time --again
    python lab/bench_precision.py CORPUS --json FILE --no-run --write   # docs/benchmarks/precision.md from the file
    python lab/bench_precision.py CORPUS --peers PYTHON --autocast PYTHON ...

FILE gets one JSON line a model and form; what it has is not made again. The converters run in environments of their
own, whose Pythons are given, so that none decides about another's releases:

    PYTHON of --peers:     onnx==1.23.2 onnxruntime==1.31.1 onnxconverter-common==1.16.0 sympy
    PYTHON of --autocast:  nvidia-modelopt[onnx]==0.47.0, which asks for onnx 1.21, ONNX Runtime 1.24 and torch

Without one its columns are empty. Each is called as its documentation says (`programs/peer.py`), in float16, on the
data on which all results are compared: the corpus' inputs, or made-up ones, in one file. What they write is held to
the rules that hold for us: onnx.checker, ONNX Runtime opens it, and the float32 program that rounds where it rounds
gives no output beyond 2 %. `time` is `prefer="time"` with that tolerance named, so that the data may overrule rules
that hold where there are none. Predicted is by `amp_transpiler.cost` at the sizes of that data. Seconds are
those of the CPU (user and system, children included), after imports; reading the model counts for us alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench_cost import corpus_models
from programs import precision_page
from programs.peer import TOOLS

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "precision.md"
MANY = 32  # the size of a batch at which times are predicted, too
OURS: Mapping[str, Mapping[str, Any]] = {
    "time": {"level": "auto", "prefer": "time", "tolerance": precision_page.TOLERANCE},
    precision_page.BATCHED: {"level": "auto", "prefer": "time", "tolerance": precision_page.TOLERANCE},
    "auto": {"level": "auto"},
    "O1": {"level": "O1", "verify": False},
    "O2": {"level": "O2", "verify": False},
}
FORMS = ("fp32", *OURS, *TOOLS)
DEVICE = "H100"
NO_LESS = 2e-7  # what a tool makes of what is smaller and not zero, at most
LEAST_SECONDS, TIMES_OURS = 60.0, 60.0  # after which a converter is stopped: the longer of both
Record = dict[str, Any]


# ---- one model, in a process of its own ----
def study(path: pathlib.Path, inputs: pathlib.Path | None, forms: Sequence[str], pythons: Mapping[str, str],
          most: float) -> Iterator[Record]:  # fmt: skip
    """Yield the record of each form of a model.

    Args:
        path: the model.
        inputs: data for it, or None.
        forms: which are wanted.
        pythons: converter -> the Python that has it; the others are left out.
        most: CPU seconds that a converter may take.
    """
    from amp_transpiler.child_process.child import start_early

    start_early()
    case = Case.of(path, inputs)
    if isinstance(case, str):
        yield from ({"form": form, "error": case} for form in forms)
        return
    taken, files = 0.0, dict[str, pathlib.Path]()
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "inputs.npz")
        case.save(data)
        for form in forms:
            file = path if form == "fp32" else pathlib.Path(folder, f"{FORMS.index(form)}.onnx")
            record: Record = {"form": form, "nodes": case.nodes}
            if form == precision_page.BATCHED and case.many is None:
                record["error"] = "no size of its inputs is that of a batch"
            elif form in OURS:
                record |= ours(path, file, data, form, case)
                taken = max(taken, record.get("seconds", 0.0))
            elif form in pythons:
                limit = min(most, max(LEAST_SECONDS, TIMES_OURS * taken))
                record |= converted(pythons[form], form, path, data, file, limit)
            elif form != "fp32":
                continue
            if "error" not in record:
                record |= case.judged(file)
            if record.get("correct"):
                record["same choice"] = [other for other, other_file in files.items() if same_choice(other_file, file)]
                files[form] = file
            yield record


def ours(path: pathlib.Path, file: pathlib.Path, data: pathlib.Path, form: str, case: Case) -> Record:
    """Convert with this package; return the seconds and what the report says."""
    import amp_transpiler as amp

    begun, dims = cpu_seconds(), case.many if form == precision_page.BATCHED else case.dims
    try:
        report = amp.transpile(path, file, inputs=str(data), device=DEVICE, dims=dims, cache=False, **OURS[form])
    except amp.AmpError as error:
        return {"error": " ".join(str(error).split())[:300]}
    record: Record = {"seconds": cpu_seconds() - begun, "repaired": len(report.repaired)}
    return {**record, "verdict": str(report.verdict)[:120]}


def converted(
    python: str, tool: str, source: pathlib.Path, data: pathlib.Path, target: pathlib.Path, limit: float
) -> Record:
    """Convert with another tool; return the seconds, or why there is no result."""
    command = [python, str(LAB / "programs" / "peer.py"), tool, str(source), str(data), str(target), str(limit)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:  # one of them leaves files where it runs
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=folder)
    try:
        record: Record = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        if done.returncode in (-24, -9):  # SIGXCPU, SIGKILL: past its seconds
            spent = cpu_seconds() - before  # its memory may have run out before its seconds
            return {"error": f"stopped after {spent:.0f} s", "stopped": spent}
        return {"error": f"it ended with status {done.returncode}: {done.stderr[-200:]}"}
    return record


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its children, those that still run included."""
    ended = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in ended)
    tick = os.sysconf("SC_CLK_TCK")
    for children in pathlib.Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            fields = pathlib.Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / tick
    return total


class Case:
    """A model, its data, and what it computes in float32.

    Attributes:
        nodes: how many nodes it has.
        dims: sizes of its open dimensions, as the data has them.
        many: the same with a larger batch; None if its inputs have none.
    """

    def __init__(self, reference: Any) -> None:
        from amp_transpiler.cost import open_dims
        from amp_transpiler.graph.walk import all_nodes
        from amp_transpiler.precision.limits import Limits

        self._reference, self._limits = reference, Limits(tolerance=precision_page.TOLERANCE)
        model = reference.program.model
        self.nodes = sum(1 for _ in all_nodes(model))
        known = open_dims(model)
        self.dims: dict[str, int] = {}
        for value in model.graph.inputs:
            array = reference.samples[0].get(value.name)
            if array is None or value.shape is None or not hasattr(array, "shape"):
                continue
            for dim, size in zip(value.shape, array.shape, strict=False):
                if not isinstance(dim, int) and dim.value in known:
                    self.dims.setdefault(str(dim.value), int(size))
        batch = {value.shape[0].value for value in model.graph.inputs if value.shape and _is_open(value.shape[0])}
        self.many = {**self.dims, **dict.fromkeys(batch & set(known), MANY)} if batch & set(known) else None
        self._checked = not checker_words(reference.program.source)

    @classmethod
    def of(cls, path: pathlib.Path, inputs: pathlib.Path | None) -> Case | str:
        """Run a model in float32; return why if it cannot be had."""
        from amp_transpiler.errors import AmpError
        from amp_transpiler.files.loading import load
        from amp_transpiler.verification.accuracy import CannotCompare, make_reference

        try:
            program = load(path)
            return cls(make_reference(program, program, None if inputs is None else str(inputs)))
        except (AmpError, CannotCompare) as error:
            return " ".join(str(error).split())[:300]

    def save(self, path: pathlib.Path) -> None:
        """Write the first sample, the one that every tool can take."""
        import numpy as np

        sample = self._reference.samples[0]
        arrays: dict[str, Any] = {name: array for name, array in sample.items() if isinstance(array, np.ndarray)}
        np.savez(path, **arrays)

    def judged(self, path: pathlib.Path) -> Record:
        """Return what a form is like; `invalid` says why it is no model."""
        if reason := (checker_words(path) if self._checked else "") or refusal(path):
            return {"invalid": reason}
        from amp_transpiler.errors import AmpError
        from amp_transpiler.files.loading import load
        from amp_transpiler.verification.accuracy import CannotCompare
        from amp_transpiler.verification.limit_excess import excesses

        try:
            program = load(path)
            record = facts(program, self.dims)
            if self.many is not None:
                record |= {f"{name} at {MANY}": value for name, value in times(program, self.many).items()}
            rows = self._reference.compare(program, self._limits)
        except (AmpError, CannotCompare) as error:
            return {"invalid": " ".join(str(error).split())[:300]}
        unjudged = self._reference.unjudged()
        judged = [row for row in rows.values() if row.name not in unjudged]
        error_ = max((math.inf if row.nonfinite else row.relative for row in judged), default=0.0)
        excess = max(excesses(rows.values(), self._reference, self._limits).values(), default=0.0)
        return {**record, "error_found": error_, "correct": excess <= 1.0}


def same_choice(path: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two files have the same operators in the same order, on the same types, and differ in rounding alone.

    Of one number two converters may make neighbours of the low format, where one rounds to the nearest and the other
    does not, or lifts what is smaller than a bound.
    """
    import itertools

    from amp_transpiler.files.loading import load
    from amp_transpiler.graph.types import propagate_types
    from amp_transpiler.graph.walk import all_nodes

    models = [load(file).model for file in (path, other)]
    for model in models:
        propagate_types(model)
    pairs = itertools.zip_longest(*map(all_nodes, models))
    return all(first is not None and two is not None and _same_node(first, two) for first, two in pairs)


def _same_node(first: Any, other: Any) -> bool:
    from amp_transpiler.graph.constness import constant_of

    constants = [[constant_of(value) for value in node.inputs] for node in (first, other)]
    kinds = [
        (
            node.op_type,
            node.domain,
            [value and value.dtype for value in node.outputs],
            # A constant without a number, such as the region of a Resize that has none, has no precision.
            [
                value and value.dtype
                for value, number in zip(node.inputs, arrays, strict=True)
                if number is None or number.size
            ],
        )
        for node, arrays in zip((first, other), constants, strict=True)
    ]
    return kinds[0] == kinds[1] and all(map(_neighbours, *constants))


def _neighbours(first: Any, other: Any) -> bool:
    """Whether each number of a constant is that of another, or next to it in its format; True for two that are none."""
    import numpy as np

    if first is None or other is None:
        return first is other
    numbers, others = first.numpy(), other.numpy()
    if not numbers.size and not others.size:
        return True
    if numbers.shape != others.shape or numbers.dtype != others.dtype:
        return False
    if numbers.dtype.kind != "f":
        return bool(np.array_equal(numbers, others))
    with np.errstate(invalid="ignore", over="ignore"):  # infinite numbers are equal, or they are not
        step = np.spacing(np.maximum(np.abs(numbers), np.abs(others)))
        return bool(np.all((numbers == others) | (np.abs(numbers - others) <= np.maximum(step, NO_LESS))))


def _is_open(dim: Any) -> bool:
    return not isinstance(dim, int) and dim.value is not None


def checker_words(path: pathlib.Path) -> str:
    """Return what onnx.checker says against a file; it does not know operators of ONNX Runtime's own."""
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # noqa: BLE001 - the checker raises several kinds
        words = " ".join(str(error).split())
        if "No Op registered" not in words and "is not a registered function/op" not in words:
            return f"onnx.checker: {words[:300]}"
    return ""


def refusal(path: pathlib.Path) -> str:
    """Return why ONNX Runtime does not open a file; nothing if it does."""
    from amp_transpiler.files.loading import load
    from amp_transpiler.verification.structure import check_load

    try:
        loaded = check_load(path, load(path))
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no such model
        return " ".join(str(error).split())[:300]
    return "" if loaded.outcome in ("loaded", "emulated") else f"ONNX Runtime: {loaded.detail[:300]}"


def facts(program: Any, dims: Mapping[str, int]) -> Record:
    """Return casts, low nodes, launches and predicted milliseconds of a form."""
    from amp_transpiler.cost.node_costs import traffic
    from amp_transpiler.graph.types import propagate_types
    from amp_transpiler.graph.walk import all_nodes
    from amp_transpiler.view.outline import precision_of

    typed = program.model.clone()
    propagate_types(typed)
    kinds = [precision_of(node) for node in all_nodes(typed)]
    low = kinds.count("float16")
    share = low / max(1, low + kinds.count("float32"))
    run = [cost.node for cost in traffic(typed, _of_model(typed, dims), fuse=True) if cost.launches]
    running = sum(precision_of(node) == "cast" for node in run)
    return {"casts": kinds.count("cast"), "casts that run": running, "low": share, **times(program, dims)}


def _of_model(model: Any, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the dimensions that a model has."""
    from amp_transpiler.cost import open_dims

    return {name: size for name, size in dims.items() if name in open_dims(model)}


def times(program: Any, dims: Mapping[str, int]) -> Record:
    """Return launches and predicted milliseconds at given sizes."""
    from amp_transpiler.cost import find_device, predict

    prediction = predict(program.model, find_device(DEVICE), _of_model(program.model, dims), fuse=True)
    return {"launches": prediction.launches, "ms": prediction.milliseconds}


# ---- all models ----
def run_model(name: str, path: pathlib.Path, inputs: pathlib.Path | None, forms: Sequence[str],
              options: argparse.Namespace) -> Iterator[Record]:  # fmt: skip
    """Yield the records of a model, made in a process of its own."""
    command = [sys.executable, __file__, str(path), "--one", str(inputs or ""), "--forms", *forms]
    for option in ("peers", "autocast", "seconds"):
        if getattr(options, option) is not None:
            command += [f"--{option}", str(getattr(options, option))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LAB.parent), str(LAB)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        left = list(forms)
        for line in child.stdout:
            record: Record = json.loads(line)
            left.remove(record["form"])
            yield {"model": name, **record}
    if child.returncode:
        yield {"model": name, "form": left[0], "error": f"the process ended with status {child.returncode}"}


def read(path: pathlib.Path) -> dict[str, dict[str, Record]]:
    """Return model -> form -> record; later lines replace earlier ones."""
    records: dict[str, dict[str, Record]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            records.setdefault(record["model"], {})[record["form"]] = record
    return records


def main() -> int:
    """Make what is asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="gets, and has, one line a model and form")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--skip", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS, metavar="FORM")
    parser.add_argument("--again", action="store_true", help="make what the file has already, too")
    parser.add_argument("--peers", help="the Python that has onnxconverter-common")
    parser.add_argument("--autocast", help="the Python that has nvidia-modelopt")
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU seconds that a converter may take")
    parser.add_argument("--largest", type=float, default=math.inf, metavar="MB", help="leave larger models out")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        pythons = {tool: options.autocast if tool == "AutoCast" else options.peers for tool in TOOLS}
        data = pathlib.Path(options.one) if options.one else None
        have = {tool: python for tool, python in pythons.items() if python}
        for record in study(options.corpus, data, options.forms, have, options.seconds):
            print(json.dumps(record), flush=True)
        return 0
    if options.json is None:
        parser.error("--json is needed: it keeps what was made")
    if not options.no_run:
        sweep(options)
    everything = read(options.json)
    print(precision_page.text(everything))
    if options.write:
        precision_page.write(PAGE, everything)
    return 0


def sweep(options: argparse.Namespace) -> None:
    """Make the records that are missing."""
    for name, path, inputs in corpus_models(options.corpus, options.only):
        known = {} if options.again else read(options.json).get(name, {})
        forms = [form for form in options.forms if form not in known]
        if not forms or any(word in name for word in options.skip) or path.stat().st_size > 1e6 * options.largest:
            continue
        for record in run_model(name, path, inputs, forms, options):
            with options.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
            print(json.dumps(record), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
