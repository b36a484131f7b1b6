"""Opens and runs the written file on the CPU as users do: with the options that ONNX Runtime has by default.

Emulation judges the numbers, on a graph that ONNX Runtime may not fuse. Users' sessions fuse, and a fusion may have no
kernel, be wrong, or end the process.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

from amp_transpiler.child_process.child import RUN_ERRORS, RuntimeCrash
from amp_transpiler.child_process.remote import RemoteSession, open_by_default, open_file
from amp_transpiler.errors import InputError
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.memory import available_memory
from amp_transpiler.runtime.ort import CPU_PROVIDER, error_text
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.targets import WEBGPU, Target
from amp_transpiler.verification.accuracy import Reference, named_outputs
from amp_transpiler.verification.disk_arrays import Spill
from amp_transpiler.verification.structure import lacks_something
from amp_transpiler.verification.verdict import failing_outputs, fault_of, worst

__all__ = ["SESSION", "DefaultSession", "Opened", "must_run", "open_as_users_do"]

logger = logging.getLogger(__name__)

_SOURCE_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError)
_CPU = str(CPUPlace())
SESSION = f"ONNX Runtime's default session ({_CPU})"
_ANYTHING_LIKE_IT = Limits(tolerance=1.0, mismatch=1.0)
_OF_SOURCE = 2.0  # times the error of the source itself there, which no conversion can mend
_COPIES = 4  # opening a session holds the weights in float16, in float32, and as they were read
_REMEDY = (
    "Open it with graph optimisation switched off (SessionOptions.graph_optimization_level), or keep the nodes that it "
    "is about in float32 with --disable-amp or --black"
)


class Opened(NamedTuple):
    """How a default session received the file.

    Attributes:
        outcome: `good`; `fault`; `source`: the source has the fault, too; `unknown`: nothing can be said.
        detail: a sentence about the fault and the remedy, or the reason why nothing can be said.
    """

    outcome: Literal["good", "fault", "source", "unknown"]
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DefaultSession:
    """ONNX Runtime's default session on the CPU: what it makes of the conversions of one source.

    Attributes:
        source: the program as the user gave it.
        of_source: what the session makes of the source itself, once it is asked for, by the number of samples; None
            where it does not run there.
    """

    source: Program
    of_source: dict[int, Mapping[str, OutputComparison] | None] = dataclasses.field(default_factory=dict, repr=False)

    def outputs(self, program: Program, reference: Reference) -> list[dict[str, object]] | None:
        """Run a conversion, or the source, on the samples of `reference`.

        Returns:
            None if it does not run there. What that means is said when the written file is opened.
        """
        try:
            with open_by_default(program, _CPU, converted=program is not self.source) as session:
                return _run(session, reference)
        except _SOURCE_ERRORS as error:
            logger.info("a conversion does not run in %s: %s", SESSION, error)
            return None

    def compared(
        self, outputs: list[dict[str, object]], reference: Reference, limits: Limits
    ) -> dict[str, OutputComparison]:
        """Compare outputs with float32, but for those beyond a limit of which the source itself is about as far off."""
        rows = reference.compare_results(outputs, limits)
        failing = failing_outputs(rows.values(), reference, limits)
        if not failing:
            return rows
        source = self._compared_source(reference, limits)
        spared = {row.name for row in failing if _is_of_source(row, source)}
        return {name: row for name, row in rows.items() if name not in spared}

    def _compared_source(self, reference: Reference, limits: Limits) -> Mapping[str, OutputComparison] | None:
        samples = len(reference.samples)
        if samples not in self.of_source:
            outputs = self.outputs(self.source, reference)
            self.of_source[samples] = None if outputs is None else reference.compare_results(outputs, limits)
        return self.of_source[samples]


def _is_of_source(row: OutputComparison, source: Mapping[str, OutputComparison] | None) -> bool:
    """Whether the source is about as far from float32 as a conversion, by its own outputs in the same session."""
    if source is None or row.name not in source:
        return True
    exact = source[row.name]
    if exact.nonfinite or exact.structure_differs:
        return True
    if row.nonfinite or row.structure_differs:
        return False
    return row.relative <= _OF_SOURCE * exact.relative and row.mismatch <= _OF_SOURCE * exact.mismatch


def must_run(target: Target) -> bool:
    """Whether programs for `target` are for the CPU provider itself, not only for nodes that another one leaves.

    A browser without WebGPU runs the same file on WebAssembly, whose provider is the CPU's.
    """
    if target.name == WEBGPU.name:
        return True
    return target.fallback is None and any(entry.provider == CPU_PROVIDER for entry in target.providers)


def open_as_users_do(
    path: pathlib.Path, program: Program, source: Program, reference: Reference | None, limits: Limits
) -> Opened:
    """Open the file at `path` by default on the CPU, and run it on every sample.

    Args:
        path: the written file.
        program: the program that it holds.
        source: the program as the user gave it; a fault that it has, too, is its own.
        reference: samples to run on, and the float32 outputs; None to open it only.
        limits: of the outputs.
    """
    needed, free = _COPIES * sum(tensor_bytes(program.model)), available_memory()
    if reference is None and free is not None and needed > free:
        return Opened("unknown", f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free")
    opened = _opened(path, reference, limits, DefaultSession(source))
    if opened.outcome == "fault" and _source_fails(source, reference):
        return Opened("source", opened.detail)
    return opened


def _opened(path: pathlib.Path, reference: Reference | None, limits: Limits, by_default: DefaultSession) -> Opened:
    try:
        with open_file(path, None, _CPU) as session:
            outputs = _run(session, reference)
    except RuntimeCrash as crash:
        if crash.signal == "SIGKILL":
            return Opened("unknown", str(crash))
        return Opened("fault", f"{SESSION} crashes on the written file: {crash}. {_REMEDY}")
    except RUN_ERRORS as error:
        if lacks_something(error):
            return Opened("unknown", error_text(error))
        return Opened("fault", f"{SESSION} refuses the written file: {error_text(error)}. {_REMEDY}")
    except InputError as error:  # a type that ONNX Runtime's Python bindings cannot pass
        return Opened("unknown", str(error))
    if reference is not None and (failing := _failing(reference, outputs, limits)):
        fault = f"{SESSION} computes something else than float32: {fault_of(worst(failing), limits)}"
        still_failing = failing_outputs(by_default.compared(outputs, reference, limits).values(), reference, limits)
        return Opened("fault", f"{fault}. {_REMEDY}") if still_failing else Opened("source", fault)
    return Opened("good")


def _run(session: RemoteSession, reference: Reference | None) -> list[dict[str, object]]:
    samples = [] if reference is None else reference.feeds(info.name for info in session.inputs)
    spill = Spill()
    # Inputs that changed their type take the samples in the new one.
    typed = (check_feeds(sample, session.inputs, lenient=True) for sample in samples)
    return [spill.kept(named_outputs(session, sample)) for sample in typed]


def _failing(reference: Reference, outputs: list[dict[str, object]], limits: Limits) -> list[OutputComparison]:
    return failing_outputs(reference.compare_results(outputs, limits).values(), reference, limits)


def _source_fails(source: Program, reference: Reference | None) -> bool:
    """Whether the source itself crashes a default session, is refused by it, or computes something else there."""
    try:
        with open_by_default(source, _CPU) as session:
            outputs = _run(session, reference)
    except _SOURCE_ERRORS as error:
        logger.info("the source does not run in a default session either: %s", error)
        return True
    return reference is not None and bool(_failing(reference, outputs, _ANYTHING_LIKE_IT))
