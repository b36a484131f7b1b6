"""Runs a low program on a device, as written and as ONNX Runtime fuses it there, beside its emulation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_on_place
from amp_transpiler.diagnosis.departures import Compared, Form, departures
from amp_transpiler.errors import InputError, ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.program.program import Program
from amp_transpiler.report.diagnosis import Departure, RunForm, RunsOnDevice
from amp_transpiler.runtime.ort import SessionSettings, error_text
from amp_transpiler.verification.default_device import CheckedDevice
from amp_transpiler.verification.run_samples import RunsSamples

__all__ = ["fused_by_runtime", "run_on_device"]

logger = logging.getLogger(__name__)

_AS_IT_STANDS = SessionSettings(optimize=False)
_COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})
_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError, ModelError, OSError)


def run_on_device(
    low: Program, results: Mapping[str, Compared], samples: Sequence[Mapping[str, Any]], device: CheckedDevice
) -> tuple[RunsOnDevice, tuple[str, ...]]:
    """Run a low program on a device.

    Args:
        low: the low program; not changed.
        results: what to compare.
        samples: the inputs.
        device: where.

    Returns:
        What the device did, and a note for each form that did not run.
    """
    ran: list[RunForm] = []
    rows: list[Departure] = []
    notes: list[str] = []
    most = 0
    for name, make in _FORMS.items():
        try:
            form = Form(name, make(low, device.place), lambda program: _opened(program, device.place))
            compared, departed = departures(low, form, results, samples)
        except _ERRORS as error:
            notes.append(f"on {device.name} the low model did not run {name}: {error_text(error)}")
            continue
        ran.append(name)
        most = max(most, compared)
        known = {row.value for row in rows}
        rows += [row for row in departed if row.value not in known]  # what departs unfused is no fault of a fusion
    return RunsOnDevice(device=device.name, forms=tuple(ran), compared=most, departures=tuple(rows)), tuple(notes)


def _opened(program: Program, place: str) -> contextlib.AbstractContextManager[RunsSamples]:
    return open_on_place(program, place, _AS_IT_STANDS)


def _as_written(low: Program, _: str) -> Program:
    return low


def fused_by_runtime(low: Program, place: str) -> Program:
    """Return a program as ONNX Runtime rewrites it for a place, where its values can be fetched and stay fused.

    Args:
        low: the program; not changed.
        place: the place.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the program, or cannot write what it makes of it.
        ModelError: what it writes cannot be read.
    """
    with _optimized(low, place) as fused:
        _leave_copies_out(fused)
        types = {name: value.type for name, value in values_by_name(low.model.graph).items()}
        for name, value in values_by_name(fused.model.graph).items():
            if value.type is None:
                value.type = types.get(name)
        propagate_types(fused.model)
        return fused


@contextlib.contextmanager
def _optimized(low: Program, place: str) -> Iterator[Program]:
    with temporary_folder() as folder:
        path = folder / "fused.onnx"
        with open_on_place(low, place, SessionSettings(written_to=str(path))):
            pass
        fused = load(path).clone()
        fused.source = None
        yield fused


def _leave_copies_out(program: Program) -> None:
    """Take ONNX Runtime's copies between devices out; a session that is opened again adds those that it needs."""
    graph = program.model.graph
    for node in [node for node in graph if node.op_type in _COPIES]:
        read = node.inputs[0]
        assert read is not None
        node.outputs[0].replace_all_uses_with(read, replace_graph_outputs=False)
        if not node.outputs[0].is_graph_output():
            graph.remove(node, safe=True)
    program.touch()


_FORMS: Mapping[RunForm, Callable[[Program, str], Program]] = {"as written": _as_written, "fused": fused_by_runtime}
