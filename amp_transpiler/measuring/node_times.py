"""Time per operator, nodes on the CPU and copies: read from ONNX Runtime's own profile of a few runs."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.errors import InputError
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.runtime.openable import AnyProgram, openable
from amp_transpiler.runtime.ort import CPU_PROVIDER, ORT_ERRORS, error_text
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.session import Session

__all__ = ["NodeTimes", "OperatorTime", "node_times", "read_profile"]

_KERNEL = "_kernel_time"
_COPIES = {"MemcpyToHost": "to the host", "MemcpyFromHost": "from the host"}


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorTime:
    """The nodes of one operator.

    Attributes:
        operator: as ONNX Runtime runs it, fused ones included.
        provider: whose kernels: `CUDA` or `CPU`.
        nodes: how many nodes, those in bodies as often as they run.
        milliseconds: of all of them in one run.
        share: of the time of all nodes.
    """

    operator: str
    provider: str
    nodes: int
    milliseconds: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTimes:
    """The contents of ONNX Runtime's profile.

    Attributes:
        operators: time per operator, the longest first.
        cpu_nodes: on a device, `OP NAME` of the nodes that run on the CPU.
        copies: on a device, the copies between it and the host that ONNX Runtime put between nodes.
    """

    operators: tuple[OperatorTime, ...] = ()
    cpu_nodes: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()


def node_times(
    program: AnyProgram, feeds: Mapping[str, Any], place: Place, *, emulate: bool = True, runs: int = 3
) -> NodeTimes:
    """Profile a program in a session of its own, whose first run is not counted.

    Args:
        program: anything that `Session` takes.
        feeds: input name -> array.
        place: where to run.
        emulate: on the CPU, run a low program emulated.
        runs: runs that are counted.

    Raises:
        InputError: the feeds do not fit, or ONNX Runtime refuses the program.
    """
    form = openable(program, place, emulate=emulate)
    try:
        with temporary_folder() as folder:
            settings = dataclasses.replace(form.settings, profiled_to=str(folder / "nodes"))
            try:
                opened = place.open_session(form.model, settings)
            except ORT_ERRORS as error:
                raise InputError(f"the program cannot be opened on {place}: {error_text(error)}") from error
            run = Session.over(opened, place).bind(feeds)
            for _ in range(runs + 1):
                run()
            events = json.loads(pathlib.Path(opened.end_profiling()).read_text(encoding="utf-8"))
    finally:
        if form.folder is not None:
            shutil.rmtree(form.folder, ignore_errors=True)
    return read_profile(events, on_device=not place.in_main_memory, runs=runs)


def read_profile(events: Sequence[Mapping[str, Any]], *, on_device: bool, runs: int) -> NodeTimes:
    """Sum the events of ONNX Runtime's profile.

    Args:
        events: the profile, of one run more than are counted.
        on_device: nodes on the CPU and copies are reported.
        runs: the last runs, which are counted.
    """
    nodes = _counted(events, runs)
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    count: collections.Counter[tuple[str, str]] = collections.Counter()
    for event in nodes:
        key = event["args"].get("op_name", "?"), event["args"].get("provider", "")
        total[key] += event["dur"]
        count[key] += 1
    whole = sum(total.values()) or 1
    operators = tuple(
        OperatorTime(
            operator,
            provider.removesuffix("ExecutionProvider"),
            round(count[operator, provider] / runs),
            microseconds / 1e3 / runs,
            microseconds / whole,
        )
        for (operator, provider), microseconds in total.most_common()
    )
    if not on_device:
        return NodeTimes(operators)
    return NodeTimes(operators, _names(nodes, on_cpu=True), _names(nodes, on_cpu=False))


def _counted(events: Sequence[Mapping[str, Any]], runs: int) -> list[Mapping[str, Any]]:
    """Return the kernels of the last runs."""
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    first = starts[-runs] if len(starts) > runs else 0
    return [
        event
        for event in events
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL) and event["ts"] >= first
    ]


def _names(nodes: Sequence[Mapping[str, Any]], *, on_cpu: bool) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for event in nodes:
        operator, name = event["args"].get("op_name", "?"), str(event["name"]).removesuffix(_KERNEL)
        if on_cpu and operator not in _COPIES and event["args"].get("provider") == CPU_PROVIDER:
            names[f"{operator} {name}"] = None
        elif not on_cpu and operator in _COPIES:
            names[f"{name} ({_COPIES[operator]})"] = None
    return tuple(names)
