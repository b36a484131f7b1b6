"""One mutant through the door: convert it, and look at what happened and what lies in its folder."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import re
import shutil
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import onnx
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.report import Verdict, as_html, as_json, explain, table
from amp_transpiler.report.verdict import judgement_of
from fuzzing.feeds import make_feeds
from fuzzing.mutant import graphs, scopes
from fuzzing.mutations import Drawn
from fuzzing.outcomes import LONGEST_MESSAGE, Outcome, fault_of_message

Door = Callable[..., Any]
Judge = Callable[[dict[str, Any]], str]
SOURCE, RESULT = "model.onnx", "result.onnx"
MEMORY_LIMIT = 2500  # megabytes

_PACKAGE = str(pathlib.Path(amp.__file__).parent)
_REFUSALS = (amp.InputError,)

# The word of a verdict -> the class of an outcome. An independent judge may look at every result that was compared.
_KINDS = {
    Verdict.VERIFIED: "verified",
    Verdict.ESTIMATED: "verified",
    Verdict.PLAUSIBLE: "verified",
    Verdict.COMPARED: "verified",
    Verdict.STRUCTURE_ONLY: "structural",
    Verdict.NOT_CHECKED: "unverified",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One mutant and how to convert it."""

    index: int
    drawn: Drawn
    options: dict[str, Any]
    judge: bool


def attempt(
    ask: Ask, folder: pathlib.Path, door: Door, judge: Judge | None = None, scratch: pathlib.Path | None = None
) -> Outcome:
    """Convert one mutant in a new folder below `folder`, and classify what happened.

    Args:
        ask: the mutant and its options.
        folder: a place for its files; they are removed afterwards.
        door: `transpile`, or something that stands for it.
        judge: recomputes a verified result, if it is asked to.
        scratch: the folder for temporary files of this process; it is watched, too.
    """
    outcome = Outcome(
        ask.index, "", ask.drawn.seed, ask.drawn.level, [name for name, _ in ask.drawn.steps], dict(ask.options)
    )
    place = folder / f"m{ask.index}"
    write_mutant(ask.drawn, place)
    before, temporary = _contents(place), _entries(scratch)
    reset_peak()
    _convert(ask, place, door, judge, outcome)
    outcome.megabytes = peak_megabytes()
    if outcome.megabytes > MEMORY_LIMIT:
        outcome.kind, outcome.detail = "memory", f"{outcome.megabytes} MB"
    _look_around(outcome, place, before, _entries(scratch) - temporary)
    shutil.rmtree(place, ignore_errors=True)
    return outcome


def write_mutant(drawn: Drawn, place: pathlib.Path) -> None:
    """Write a mutant's files into a new folder."""
    place.mkdir(parents=True)
    (place / SOURCE).write_bytes(drawn.data)
    for name, data in drawn.files.items():
        (place / name).write_bytes(data)


def _convert(ask: Ask, place: pathlib.Path, door: Door, judge: Judge | None, outcome: Outcome) -> None:
    path = place / SOURCE
    options, feeds = dict(ask.options), None
    if judge is not None and ask.judge and options["verify"]:
        feeds = options["inputs"] = _feeds(ask)
    try:
        report = _timed(door, outcome, path, place / RESULT, options)
        _show(report)
    except (amp.CheckFailed, *_REFUSALS) as error:
        _refused(ask, path, outcome, error)
        if judge is not None and ask.judge and isinstance(error, amp.ModelError):
            outcome.judged = judge({"loads": str(path)})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (that nothing else comes out is what is being tested)
        _foreign(outcome, error)
    else:
        _converted(outcome, report)
        if feeds is not None and outcome.kind == "verified" and judge is not None:
            outcome.judged = judge(_case(ask, place, report))
            if outcome.judged.startswith("wrong"):
                outcome.kind, outcome.detail = "wrong", outcome.judged


def _refused(ask: Ask, path: pathlib.Path, outcome: Outcome, error: amp.AmpError) -> None:
    """Classify an error of ours by its message."""
    fault = fault_of_message(str(error), str(path), _names(ask.drawn.data) | set(ask.options))
    outcome.kind = "check failed" if isinstance(error, amp.CheckFailed) else "refused"
    outcome.detail, outcome.where = _one_line(str(error)), _innermost(error.__traceback__)
    if fault:
        outcome.kind, outcome.detail = "vague", f"{fault}: {outcome.detail}"


def _timed(door: Door, outcome: Outcome, src: pathlib.Path, dst: pathlib.Path, options: dict[str, Any]) -> Any:
    started = time.perf_counter()
    try:
        return door(src, dst, **options)
    finally:
        outcome.seconds = round(time.perf_counter() - started, 4)


def _show(report: Any) -> None:
    """Render a report in every way: names in it may be anything."""
    as_html.page([(report, None)])
    as_json.dump(as_json.report_as_dict(report))
    Console(file=io.StringIO()).print(table.summary(report))
    list(explain.explain_lines(report))


def _converted(outcome: Outcome, report: Any) -> None:
    outcome.detail = _one_line(report.verdict)
    if report.is_copy or "needless" in judgement_of(report.verdict).basis:
        outcome.kind = "nothing"
    else:
        outcome.kind = _KINDS[report.verdict_word]


def _feeds(ask: Ask) -> dict[str, Any] | None:
    try:
        model = onnx.ModelProto.FromString(ask.drawn.data)
    except Exception:  # noqa: BLE001  (each implementation of protobuf has a DecodeError of its own)
        return None
    return make_feeds(model, ask.index)


def _case(ask: Ask, place: pathlib.Path, report: Any) -> dict[str, Any]:
    reported = {name: [row.relative, row.nonfinite] for name, row in report.outputs.items()}
    return {"index": ask.index, "source": str(place / SOURCE), "result": str(place / RESULT), "reported": reported}


def _foreign(outcome: Outcome, error: BaseException) -> None:
    outcome.kind = "foreign"
    outcome.detail = f"{type(error).__name__}: {_one_line(str(error))}"
    outcome.where = _innermost(error.__traceback__)


def _innermost(trace: TracebackType | None) -> str:
    """Return the innermost line of the package, and that of the library below it."""
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if frame.filename.startswith(_PACKAGE)]
    shown = [f"{frame.filename.removeprefix(_PACKAGE)[1:]}:{frame.lineno}" for frame in ours[-1:]]
    if frames and frames[-1] not in ours[-1:]:
        shown.append("/".join(pathlib.Path(frames[-1].filename).parts[-2:]) + f":{frames[-1].lineno}")
    return " < ".join(shown)


def _one_line(text: str) -> str:
    """Return text that fits a line of a table, control characters escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:2000])
    return shown if len(shown) <= LONGEST_MESSAGE else shown[:LONGEST_MESSAGE] + "..."


def _names(data: bytes) -> set[str]:
    """Return what a message may name: nodes, operators, values, functions, domains; any word if the file is damaged."""
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # noqa: BLE001  (each implementation of protobuf has a DecodeError of its own)
        return set(re.findall(r"[\w.:+-]{3,}", data.decode("utf-8", "replace")))
    known = {"ai.onnx", *(entry.domain for entry in model.opset_import)}
    for scope in scopes(model):
        for node in scope.node:
            known |= {node.name, node.op_type, node.domain, *node.input, *node.output}
    for graph in graphs(model):
        known |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for function in model.functions:
        known |= {function.name, f"{function.domain}::{function.name}"}
    return {str(name) for name in known}


# ---- files ----


def _contents(place: pathlib.Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(place)): file.read_bytes() if file.is_file() else b"" for file in sorted(place.rglob("*"))
    }


def _entries(folder: pathlib.Path | None) -> set[str]:
    if folder is None:
        return set()
    return {entry.name for entry in folder.iterdir()} - {".ses"}  # ONNX Runtime's own


def _look_around(outcome: Outcome, place: pathlib.Path, before: dict[str, bytes], temporary: set[str]) -> None:
    """Notice sources that changed, and files that have no business here."""
    after = _contents(place)
    changed = sorted(name for name, data in before.items() if after.get(name) != data)
    if changed:
        outcome.kind, outcome.detail = "source changed", f"{', '.join(changed)} ({outcome.kind}: {outcome.detail})"
        return
    wrote = outcome.kind in {"verified", "structural", "unverified", "nothing", "wrong"}
    allowed = _result_files(place, after) if wrote else set()
    left = sorted(set(after) - set(before) - allowed)
    left += sorted(f"(temporary) {name}" for name in sorted(temporary))
    if left:
        outcome.kind, outcome.detail = "leftovers", f"{', '.join(left)} ({outcome.kind}: {outcome.detail})"


def _result_files(place: pathlib.Path, files: dict[str, bytes]) -> set[str]:
    """Return the result and the data files that it names."""
    if RESULT not in files:
        return set()
    try:
        model = onnx.ModelProto.FromString(files[RESULT])
    except Exception:  # noqa: BLE001  (a copy of a source that is no model)
        return {RESULT}
    tensors = [tensor for graph in graphs(model) for tensor in graph.initializer]
    named = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return {RESULT} | {name for name in named if (place / name).is_file()}


# ---- memory ----


def reset_peak() -> None:
    """Start measuring the peak of this process's memory anew, where Linux can."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_megabytes(process: str | int = "self", field: str = "VmHWM") -> int:
    """Return a process's peak (or present: VmRSS) memory; 0 where the system does not tell."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    match = re.search(rf"{field}:\s+(\d+)", status)
    return int(match[1]) // 1024 if match else 0
