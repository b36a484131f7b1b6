"""The way of a model: load, prepare, decide, rewrite, check, compare, save."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import onnx_ir as ir

from amp_transpiler.conversion import Conversion, convert, fitted, prepare
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.graph.copy_files import copy_model
from amp_transpiler.graph.external_data import external_files
from amp_transpiler.graph.io import Staged, check_destination, load, stage, tensor_bytes
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, mark_region
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import RangeFaults
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report import DecisionRow, Report
from amp_transpiler.systems.choice import DEFAULT_DTYPE, Request, choose_policy
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.verification.verify import accurate, check_result, check_source

__all__ = ["transpile"]

Progress = Callable[[str, float], None]


def transpile(
    src: Any,
    dst: str | os.PathLike[str] | None = None,
    *,
    level: str = "auto",
    dtype: str = DEFAULT_DTYPE,
    target: str = "cuda",
    keep_io_types: bool | Collection[str] = True,
    amp_lists: AutoMixedPrecisionLists | None = None,
    use_promote: bool = False,
    guard: str | Collection[str] = (),
    disable_amp: str | Collection[str] = (),
    inputs: Any = None,
    tolerance: float | None = None,
    verify: bool = True,
    policy: str = "paddle",
    preset: str | None = None,
    mixed_ops: str | Collection[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Convert an fp32 model to mixed precision, check it, and write it.

    Args:
        src: The model: a path, `onnx.ModelProto`, `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. It is never
            changed.
        dst: The file to write; None keeps the result in memory, as `Report.program`.
        level: How much becomes lower precision. `auto` (default): all that the target can run and that is numerically
            safe, except nodes that go back to float32 until the result is accurate; `O0`: nothing (the files are
            copied); `OD`: the white list only; `O1`: Paddle's lists: white operators, and gray ones that follow them;
            `O2`: all that the target can run, even operators on the default black list.
        dtype: The lower precision. Default: `float16`, or `bfloat16` with a preset or mixed operators.
        target: Whose kernels count. `cuda` (default): ONNX Runtime's CUDA provider; `cpu`: ONNX Runtime's CPU provider;
            `any`: both providers; `tensorrt`: TensorRT: what ONNX's schemas allow, since there is no kernel table.
        keep_io_types: Which inputs and outputs of the graph stay float32: all (True), none (False), or those named.
        amp_lists: Your own white and black operators and black variables; None for the default lists.
        use_promote: Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is
            float32, else it becomes lower precision. Constants do not count at levels auto and O2.
        guard: Patterns of node names. If any is given, only nodes whose name contains a match may become lower
            precision.
        disable_amp: Patterns of node names. Nodes whose name contains a match stay as they are written.
        inputs: Samples to compare on: an .npz file, a folder, a dict, or several dicts. None: inputs made up from the
            model's shapes.
        tolerance: The largest relative error (of the norm) of any output, as a fraction. Default: 0.02 in float16 and
            0.05 in bfloat16 at level auto of policy paddle; otherwise any finite error passes and is reported.
        verify: Check the result with onnx.checker, load it in ONNX Runtime, and compare it with the fp32 model. False:
            check only the types of every node's inputs.
        policy: Whose rules decide. Only `paddle` has levels OD and O2. `paddle` (default): Paddle's lists and levels;
            `torch`: PyTorch's autocast classes; `raf`: RAF's casting rules; `mxnet`: MXNet's conversion lists.
        preset: SambaNova's presets, instead of a policy and level. `mp0`: nothing (the files are copied); `mp1`: matrix
            products take inputs in lower precision; `mp4`: all that the target can run; `default`: like mp4, but what
            follows a cast to float32 in the source stays float32.
        mixed_ops: SambaNova's mixed operators, with or without a preset. `gemm`: inputs in lower precision, result in
            float32; `softmax`: input in float32, result in lower precision.
        progress: Called with the name of a phase and the fraction of it that is done.

    Returns:
        The report, with the converted program.

    Raises:
        InputError: the model, an option or the output place is wrong. Nothing is written.
        CheckFailed: the result is invalid or not accurate enough. Nothing is written.
    """
    clock = _Clock(progress)
    request = Request(
        policy=policy,
        level=level,
        dtype=dtype,
        target=target,
        lists=amp_lists,
        use_promote=use_promote,
        preset=preset,
        mixed_ops=mixed_ops,
    )
    chosen = _with_tolerance(choose_policy(request), tolerance)
    destination = None if dst is None else pathlib.Path(dst)
    with clock.phase("load"):
        source = load(src)
        if destination is not None:
            check_destination(destination, source)
        # A file loaded for this call alone may be worked on itself; verification wants the original beside the result.
        program = source if isinstance(src, (str, os.PathLike)) and not verify else source.clone()
        _mark(program, guard, disable_amp)
        chosen = fitted(_with_io(chosen, program, keep_io_types), program)
        chosen = dataclasses.replace(chosen, use_guard=chosen.use_guard or bool(guard))
        report = _begin(source, destination, chosen, request)
    if chosen.copies:
        return _copied(source, chosen, report, destination, clock)
    ranges = RangeFaults(chosen.low, strict=chosen.strict_ranges)
    with clock.phase("prepare"):
        prepare(program, chosen, ranges)
    if verify:
        check_source(program, clock.phase)
        program, conversion, failure = accurate(source, program, chosen, ranges, inputs, report, clock.phase)
    else:
        with clock.phase("convert"):
            conversion, failure = convert(program, chosen, ranges), ""
        report.verdict = "not verified: verification was switched off"
    _describe(report, program, conversion)
    if failure:
        raise CheckFailed(failure, report)
    _write(program, destination, source if verify else None, report, clock)
    report.seconds, report.phases = clock.total(), clock.phases
    return report


def _mark(program: Program, guard: str | Collection[str], disable_amp: str | Collection[str]) -> None:
    for kind, patterns in ((FP16_GUARD, guard), (DISABLE_AMP, disable_amp)):
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            mark_region(program, kind, nodes=pattern)


def _begin(source: Program, destination: pathlib.Path | None, policy: Policy, request: Request) -> Report:
    """Return a report that says what was asked for, and what there was before."""
    opset, weights = opset_of(source.model, ""), sum(tensor_bytes(source.model))
    return Report(
        str(source.source or source),
        request.level_name,
        policy.low.name,
        policy.target,
        asked=request.label,
        is_copy=policy.copies,
        destination=None if destination is None else str(destination),
        opset=(opset, opset),
        weight_bytes=(weights, weights),
        file_bytes=(_file_bytes(source), None),
    )


def _with_tolerance(policy: Policy, tolerance: float | None) -> Policy:
    """The policy with the user's own tolerance, if there is one."""
    if tolerance is None:
        return policy
    if not tolerance > 0.0:
        raise OptionError(f"tolerance is {tolerance}: expected a fraction above 0, such as 0.01 for one percent")
    return dataclasses.replace(policy, tolerance=tolerance)


def _with_io(policy: Policy, program: Program, keep: bool | Collection[str]) -> Policy:
    graph = program.model.graph
    names = {str(value.name) for value in (*graph.inputs, *graph.outputs)} - program.persistables.keys()
    kept = (names if keep else set()) if isinstance(keep, bool) else set(keep)
    if unknown := sorted(kept - names):
        raise OptionError(
            f"keep_io_types names '{unknown[0]}', which is no input or output: {', '.join(sorted(names))}"
        )
    return dataclasses.replace(policy, low_io=frozenset(names - kept))


def _copied(source: Program, policy: Policy, report: Report, destination: pathlib.Path | None, clock: _Clock) -> Report:
    """Change nothing: the files are copied byte for byte; what was no file is written as it is."""
    if policy.low_io:
        raise OptionError(f"{report.asked} changes nothing, so inputs and outputs cannot become {policy.low.name}")
    with clock.phase("write"):
        written = None
        if destination is not None and source.source is not None:
            written = copy_model(source.source, destination)
        elif destination is not None:
            with stage(source, destination) as staged:
                written = staged.file_bytes
                staged.commit()
    reason = f"{report.asked}: nothing is changed"
    report.program = source.clone()
    report.decisions = tuple(
        DecisionRow(str(node.name), operator_name(node), "untouched", reason, scope.path)
        for scope in scopes(source.model)
        for node in scope.graph
    )
    report.nodes = len(report.decisions)
    report.file_bytes = (report.file_bytes[0], written)
    report.verdict = "not verified: nothing was changed"
    report.seconds, report.phases = clock.total(), clock.phases
    return report


def _describe(report: Report, program: Program, conversion: Conversion) -> None:
    decisions = conversion.assignment.decisions
    report.program = program
    report.decisions = tuple(_rows(program.model, conversion.assignment))
    report.nodes = len(report.decisions)
    report.low_nodes = sum(decision.precision == "low" for decision in decisions.values())
    report.high_nodes = sum(decision.precision == "high" for decision in decisions.values())
    report.casts, report.casts_removed = conversion.casts, conversion.casts_removed
    report.opset = (report.opset[0], opset_of(program.model, ""))
    report.weight_bytes = (report.weight_bytes[0], sum(tensor_bytes(program.model)))
    report.missing_kernels = dict(conversion.assignment.missing_kernels)
    report.notes = (*program.notes, *report.notes)


def _rows(model: ir.Model, assignment: Assignment) -> Iterator[DecisionRow]:
    paths = {scope.graph: scope.path for scope in scopes(model)}
    for node, decision in assignment.decisions.items():
        path = paths.get(node.graph, "") if isinstance(node.graph, ir.Graph) else ""
        yield DecisionRow(str(node.name), operator_name(node), decision.precision, decision.reason, path)


def _file_bytes(program: Program) -> int | None:
    """Size of the source's files: the model and the external data it refers to."""
    if program.source is None:
        return None
    return sum(file.stat().st_size for file in {program.source, *external_files(program.model)})


def _write(
    program: Program, destination: pathlib.Path | None, checked_against: Program | None, report: Report, clock: _Clock
) -> None:
    """Write the program where it is to be written, once the file has passed its checks where there are to be any."""
    with clock.phase("write"), _written(program, destination, checked_against is not None, clock) as staged:
        if staged is not None and checked_against is not None:
            check_result(staged, program, checked_against, report, clock.phase)
        if staged is not None and destination is not None:
            report.file_bytes = (report.file_bytes[0], staged.file_bytes)
            staged.commit()
            program.source = destination


@contextlib.contextmanager
def _written(
    program: Program, destination: pathlib.Path | None, verify: bool, clock: _Clock
) -> Iterator[Staged | None]:
    """Write the program beside its destination, or to a temporary folder where it is only to be checked."""
    if destination is not None:
        with stage(
            program, destination, progress=lambda done, total: clock.tell("write", done / max(1, total))
        ) as staged:
            yield staged
    elif verify:
        with (
            tempfile.TemporaryDirectory(prefix="amp-transpiler-") as folder,
            stage(program, pathlib.Path(folder) / "model.onnx") as staged,
        ):
            yield staged
    else:
        yield None


class _Clock:
    """Times the phases of a conversion and tells of them."""

    def __init__(self, progress: Progress | None) -> None:
        self._start = time.perf_counter()
        self._progress = progress
        self.phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside; a phase entered again adds up."""
        start = time.perf_counter()
        self.tell(name, 0.0)
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start
            self.tell(name, 1.0)

    def tell(self, name: str, fraction: float) -> None:
        """Report that `fraction` of phase `name` is done."""
        if self._progress is not None:
            self._progress(name, fraction)

    def total(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._start
