"""Shows a diagnosis in the terminal: which node is to blame, what its fault does to the outputs, and the cure."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from amp_transpiler.phrases import counted, first_few
from amp_transpiler.report.diagnosis import Cure, Diagnosis, Fault, NodeDiagnosis, RunsOnDevice, Suspect
from amp_transpiler.report.diagnosis_device import departures_table, device_words
from amp_transpiler.report.page_table import Column, PageTable, table_of
from amp_transpiler.report.table import outputs_text, outputs_worst_first, printable
from amp_transpiler.report.text_table import text_table
from amp_transpiler.report.wording import percent

__all__ = [
    "FAULT_WORDS",
    "answer",
    "circumstances",
    "cure_options",
    "cure_words",
    "diagnosis_text",
    "error_of",
    "own_error_of",
    "path_words",
    "share_or_infinite",
    "something_is_wrong",
    "suspects_table",
    "suspects_title",
    "unmatched_words",
]

FAULT_WORDS: dict[Fault, str] = {
    "overflow": "overflows",
    "vanishing": "becomes zero",
    "constant": "constant",
    "integers": "integers",
    "kernel": "kernel",
    "rounding": "rounding",
}
"""What a node does wrong, as a table says it."""

_ROWS, _OUTPUTS, _OPTIONS, _NAMES = 10, 6, 8, 3  # that the terminal shows
_PATH_ENDS = (3, 2)  # nodes at the beginning and at the end of a long path
_LONG = 44  # characters of a name in the tables of the terminal: its end tells nodes apart


def something_is_wrong(diagnosis: Diagnosis) -> bool:
    """Whether a limit is exceeded, or a node is to blame for anything."""
    return diagnosis.guilty is not None or not diagnosis.excess <= 1  # no number exceeds a limit, too


def share_or_infinite(fraction: float) -> str:
    """Return an error as a percentage; `infinite`, or `NaN`, if it is no finite number."""
    if math.isfinite(fraction):
        return percent(fraction)
    return "NaN" if math.isnan(fraction) else "infinite"


def error_of(row: NodeDiagnosis) -> float:
    """Return the error of a result in the low model; infinite if some of its numbers are, or are NaN."""
    return math.inf if row.infinite > 0 else row.error


def own_error_of(row: NodeDiagnosis) -> float:
    """Return the error of a node by itself; infinite if it makes numbers infinite or NaN."""
    return math.inf if row.own_infinite > 0 else row.own_error


def answer(diagnosis: Diagnosis) -> str:
    """Return the sentences that answer the question: which node is guilty, and how far off the outputs are."""
    error = _error_words(diagnosis)
    guilty = diagnosis.guilty
    if guilty is None:
        if something_is_wrong(diagnosis):
            return f"The outputs are wrong, but no node could be named that is to blame: {error}."
        return f"Nothing is wrong: {error}."
    blame = f"'{guilty.node}' ({guilty.op}) is to blame: {guilty.why.rstrip('.')}."
    if diagnosis.excess <= 1:
        return f"{blame} The limits hold all the same: {error}."
    return f"{blame} {error[:1].upper()}{error[1:]}."


def _error_words(diagnosis: Diagnosis) -> str:
    if not diagnosis.outputs:
        return "no outputs were compared"
    if not math.isfinite(diagnosis.error):
        return "an output is infinite or NaN"
    error = f"the largest error of an output is {percent(diagnosis.error)}"
    if diagnosis.excess <= 1:
        return f"{error}, which is allowed"
    if diagnosis.error == 0:  # outputs without floats: the share that differs is judged
        mismatch = max(output.mismatch for output in diagnosis.outputs.values())
        return f"{percent(mismatch)} of an output's elements differ, {_times(diagnosis.excess)} what is allowed"
    return f"{error}, {_times(diagnosis.excess)} what is allowed"


def _times(excess: float) -> str:
    return f"{excess:.3g} times" if excess < 1e6 else "far more than a million times"


def circumstances(diagnosis: Diagnosis) -> str:
    """Return which models ran, and on what: `float16, 4 samples, 3 passes over them`."""
    what = diagnosis.dtype if diagnosis.low is not None else f"converted to {diagnosis.dtype} for the diagnosis"
    samples = counted(diagnosis.samples, "sample" if diagnosis.given else "made-up sample")
    passes = f"{diagnosis.passes} passes" if diagnosis.passes != 1 else "one pass"
    return f"{what}; {samples}, {passes} over {'it' if diagnosis.samples == 1 else 'them'}"


def suspects_table(diagnosis: Diagnosis, *, reasons: bool = False) -> PageTable:
    """Return the suspects, the likeliest first.

    Args:
        diagnosis: what they are suspects of.
        reasons: say in a sentence why, and not only in a word.
    """
    errors = {(row.node, row.value): own_error_of(row) for row in diagnosis.nodes}

    def own_error(suspect: Suspect) -> float:
        return errors.get((suspect.node, suspect.value), 0.0)

    def is_known(suspect: Suspect) -> bool:
        return (suspect.node, suspect.value) in errors

    columns: list[Column[Suspect]] = [
        Column("node", lambda suspect: suspect.node, code=True),
        Column("operator", lambda suspect: suspect.op),
        Column("what is wrong", lambda suspect: FAULT_WORDS[suspect.fault]),
        Column("own error", lambda suspect: share_or_infinite(own_error(suspect)), is_known, own_error),
        Column(
            "adds",
            lambda suspect: share_or_infinite(suspect.contribution),
            key=lambda suspect: suspect.contribution,
            kind=lambda suspect: "" if math.isfinite(suspect.contribution) else "bad-text",
        ),
        Column("why", lambda suspect: suspect.why, lambda _: reasons, kind=lambda _: "words"),
    ]
    return table_of("Suspects", columns, diagnosis.suspects)


def suspects_title(diagnosis: Diagnosis) -> str:
    """Return what the table of suspects shows: without a fault nobody is suspected of one."""
    if something_is_wrong(diagnosis):
        return "suspects, with what their own error adds to the outputs"
    return "what adds most to the error of the outputs"


def path_words(diagnosis: Diagnosis, *, ends: tuple[int, int] | None = None) -> str:
    """Return the way of the fault to an output, `a -> b -> logits`; empty if it is not known.

    Args:
        diagnosis: whose path it is.
        ends: how many nodes of the beginning and of the end are shown if there are more than both, with the ends of
            their names; None: all, with whole names.
    """
    if not diagnosis.path:
        return ""
    names = list(diagnosis.path)
    output = _output_of(diagnosis, names[-1])
    if ends is not None:
        names = [_end_of(name) for name in names]
        if len(names) > sum(ends) + 1:
            names[ends[0] : -ends[1]] = [f"... {len(names) - sum(ends)} more ..."]
    return " -> ".join([*names, *([f"output '{output}'"] if output else [])])


def _end_of(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _LONG else f"…{name[1 - _LONG :]}"


def _output_of(diagnosis: Diagnosis, node: str) -> str:
    """Return the output that a node makes; empty if it makes none."""
    return next((row.value for row in diagnosis.nodes if row.node == node and row.value in diagnosis.outputs), "")


def absorbed_words(diagnosis: Diagnosis) -> str:
    """Return where infinite numbers became finite ones; empty if they did not."""
    if diagnosis.absorbed is None:
        return ""
    return f"'{diagnosis.absorbed}' makes finite numbers of infinite ones: behind it only the error tells of the fault."


def cure_words(cure: Cure) -> str:
    """Return what mends the model, and how that is known."""
    share = f"{percent(cure.excess)} of what is allowed"
    text = f"{_what_mends(cure)} the largest error of an output is {share_or_infinite(cure.error)}, {share}."
    text += f" {counted(cure.runs, 'conversion')} {'was' if cure.runs == 1 else 'were'} run for that."
    return f"{text} Written to {cure.written}." if cure.written is not None else text


def _what_mends(cure: Cure) -> str:
    if cure.dtype is not None:
        return f"Many roundings add up, and a conversion to {cure.dtype} holds as it is:"
    nodes = "this node stays" if len(cure.nodes) == 1 else f"these {len(cure.nodes)} nodes stay"
    if cure.rescaled:
        names = first_few([f"'{name}' by 2^{power}" for name, power in cure.rescaled.items()], _NAMES)
        also = f" and {nodes} float32," if cure.nodes else ""
        verb = "is" if len(cure.rescaled) == 1 else "are"
        return f"If {names} {verb} scaled, which changes no float32 result,{also}"
    if cure.nodes:
        return f"If {nodes} float32,"
    return "A conversion of the float32 model is right as it is:"  # the low one is of another tool or target


def cure_options(cure: Cure) -> tuple[str, ...]:
    """Return the options of a conversion with the cure, for a shell; all are printable."""
    if cure.dtype is not None:
        return (f"--dtype {cure.dtype}",)
    return tuple(f"--disable-amp {shlex.quote(f'^{_pattern(name)}$')}" for name in cure.nodes)


def _pattern(name: str) -> str:
    """Return a regular expression that matches a name, and has no control characters even if the name has some."""
    return "".join(re.escape(c) if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def unmatched_words(diagnosis: Diagnosis, most: int) -> str:
    """Return which nodes were not compared; empty if all were."""
    names = diagnosis.unmatched
    if not names:
        return ""
    has = "has" if len(names) == 1 else "have"
    return f"{counted(len(names), 'float32 node')} {has} no partner in the low model: {first_few(names, most)}."


def diagnosis_text(diagnosis: Diagnosis) -> RenderableType:
    """Return the diagnosis for `rich` to print: the answer first, readable at 80 columns and without colour."""
    is_wrong = something_is_wrong(diagnosis)
    parts = [
        _line(answer(diagnosis), "bold red" if is_wrong else "bold green"),
        _line(f"{diagnosis.source}{'' if diagnosis.low is None else f' and {diagnosis.low}'}", "dim"),
        _line(circumstances(diagnosis), "dim"),
        *_outputs(diagnosis),
        *_suspects(diagnosis),
        *_path(diagnosis),
        *_device(diagnosis.on_device),
        *_cure(diagnosis.cure),
        *_notes(diagnosis),
    ]
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, overflow="fold")


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _indented(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2), expand=False)


def _outputs(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    ordered = outputs_worst_first(diagnosis.outputs.values())
    if not ordered:
        return
    yield _title("outputs")
    shown = ordered if len(ordered) == _OUTPUTS + 1 else ordered[:_OUTPUTS]
    yield _indented(outputs_text(shown), *_more(len(ordered) - len(shown)))


def _suspects(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    table = suspects_table(diagnosis)
    if table.rows:
        yield _title(suspects_title(diagnosis))
        yield _indented(*_first_rows(table))


def _first_rows(table: PageTable) -> Iterator[RenderableType]:
    """Yield the beginning of a table of nodes, with the ends of their names, and how many rows are left out."""
    rows = [(dataclasses.replace(name, text=_end_of(name.text)), *rest) for name, *rest in table.rows[:_ROWS]]
    yield text_table(dataclasses.replace(table, rows=tuple(rows)))
    yield from _more(len(table.rows) - len(rows))


def _path(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    lines = [text for text in (path_words(diagnosis, ends=_PATH_ENDS), absorbed_words(diagnosis)) if text]
    if lines:
        yield _title("the way of the fault")
        yield _indented(*map(_line, lines))


def _device(runs: RunsOnDevice | None) -> Iterator[RenderableType]:
    if runs is None:
        return
    table = departures_table(runs)
    yield _title("on the device")
    yield _indented(_line(device_words(runs)), *(_first_rows(table) if table.rows else ()))


def _cure(cure: Cure | None) -> Iterator[RenderableType]:
    if cure is None:
        return
    yield _title("cure")
    options = cure_options(cure)
    yield _indented(
        _line(cure_words(cure)),
        *(_line(option, "green") for option in options[:_OPTIONS]),
        *_more(len(options) - _OPTIONS),
        *([] if cure.written is not None else [_line("--fix OUT.onnx writes the mended model.", "dim")]),
    )


def _notes(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    notes = [note for note in (unmatched_words(diagnosis, _NAMES), *diagnosis.notes) if note]
    if notes:
        yield _title("notes")
        yield _indented(*map(_line, notes))


def _more(count: int) -> Sequence[RenderableType]:
    return [Text(f"and {count} more (--json and --report have them all)", style="dim")] if count > 0 else []
