"""`Session`: a program that is ready to run on a place."""

from __future__ import annotations

import logging
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.graph.loading import load
from amp_transpiler.graph.low_values import has_low_values
from amp_transpiler.runtime import ort
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds
from amp_transpiler.runtime.gemm_options import TilingAccum, check_tiling_accum, gemm_option, warn_without_effect
from amp_transpiler.runtime.openable import AnyProgram, Openable, openable
from amp_transpiler.runtime.places import CPUPlace, Place, default_place
from amp_transpiler.runtime.values import element_type, from_ort, is_extension, run_session, to_ort

__all__ = ["AnyProgram", "Session"]

_logger = logging.getLogger(__name__)


class Session:
    """A program that is ready to run.

    Args:
        program: a program, the path of a model, an `onnx.ModelProto` or an `onnx_ir.Model`; never changed.
        place: where to run; None for CUDA if a device answers, else the CPU.
        emulate: on the CPU, run a program with float16 or bfloat16 values as the float32 program that rounds like it.
            ONNX Runtime's CPU provider computes float16 in float32 without rounding in between, and most bfloat16
            operators not at all. No effect on CUDA.
        tiling_accum: the type that float16 matrix products (MatMul, Gemm, and their fused forms) accumulate in:
            "fp32", or "low" for float16, on CUDA only. ONNX Runtime reads it once in a process, so all CUDA sessions
            of a process must have the same; sessions opened without this package are not seen. bfloat16 always
            accumulates in float32: a program without a float16 value runs with a warning.

    Attributes:
        place: where it runs.
        emulated: whether it runs emulated.
        inputs: the inputs, a `ValueInfo` each; those with a default are not `required`.
        outputs: the outputs.
        cpu_nodes: on CUDA, `OP NAME` of the nodes that run on the CPU; empty on the CPU.

    Raises:
        ModelError: the model cannot be read.
        OptionError: `tiling_accum` is neither "fp32" nor "low".
        EnvironmentProblem: the place cannot be used, or two ONNX Runtime wheels are installed; or `tiling_accum` is
            "low" on the CPU, differs from an earlier CUDA session's, or contradicts ORT_CUDA_GEMM_OPTIONS.
        ORT_ERRORS: ONNX Runtime refuses the model (see `amp_transpiler.runtime.ort`).
    """

    def __init__(
        self,
        program: AnyProgram,
        place: Place | None = None,
        *,
        emulate: bool = True,
        tiling_accum: TilingAccum = "fp32",
    ) -> None:
        self.place: Place = default_place() if place is None else place
        check_tiling_accum(tiling_accum, self.place)
        if tiling_accum == "low" and not has_low_values(load(program), dtypes=(ir.DataType.FLOAT16,)):
            warn_without_effect()
        form = openable(program, self.place, emulate=emulate)
        if form.folder is not None:
            weakref.finalize(self, shutil.rmtree, form.folder, ignore_errors=True)
        self.emulated = form.emulated
        with gemm_option(tiling_accum, self.place):
            self._adopt(self._open(form))
        self.cpu_nodes = () if self.place.in_main_memory else ort.nodes_on_cpu(self._session)
        if self.cpu_nodes:
            _logger.info("%d nodes run on the CPU: %s", len(self.cpu_nodes), ", ".join(self.cpu_nodes))

    @classmethod
    def over(cls, session: onnxruntime.InferenceSession, place: Place) -> Session:
        """Return a `Session` of a session that is open on `place` already."""
        made = cls.__new__(cls)
        made.place, made.emulated, made.cpu_nodes = place, False, ()
        made._adopt(session)  # noqa: SLF001  its own class's
        return made

    def __repr__(self) -> str:
        return f"Session(on {self.place}{', emulated' if self.emulated else ''})"

    def run(self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
        """Run once and return the outputs, in the order of `fetch`.

        Args:
            feeds: input name -> array of the input's type and rank. bfloat16 arrays have type `ml_dtypes.bfloat16`;
                float32 arrays are converted if the input is float16 or bfloat16. Sequences are lists.
            fetch: names of outputs; None for all, in the program's order.

        Returns:
            One numpy array per output; a list for a sequence, None for an empty optional.

        Raises:
            InputError: an input is missing, unknown, or of another type or rank; or a fetched output does not exist.
            ORT_ERRORS: ONNX Runtime failed while running.
        """
        names = self._fetched(fetch)
        if not names:
            return []  # ONNX Runtime takes an empty list to mean all outputs
        values = check_feeds(feeds, self.inputs)
        try:
            if self.place.in_main_memory or not self._can_bind(values, names):
                return run_session(self._session, values, names)
            binding = self._binding(values, names)
            self._session.run_with_iobinding(binding)
        except ort.ORT_ERRORS as error:
            # A session shows unknown ranks and scalars alike, so `check_feeds` cannot find every wrong rank.
            if ort.is_about_feeds(error):
                raise InputError(ort.error_text(error)) from error
            raise
        return [from_ort(value) for value in binding.get_outputs()]

    def bind(self, feeds: Mapping[str, Any]) -> Callable[[], None]:
        """Return a function that runs once on these feeds and waits for the end.

        Inputs are on the device before it is called, and outputs stay there, so a call takes the program's own time.
        Programs with strings or sequences copy each time: ONNX Runtime cannot bind these.

        Raises:
            InputError: as `run`.
        """
        values = check_feeds(feeds, self.inputs)
        names = [info.name for info in self.outputs]
        if not self._can_bind(values, names):

            def run_and_copy() -> None:
                run_session(self._session, values, names)

            return run_and_copy
        binding = self._binding(values, names, keep=True)

        def run() -> None:
            # `values` must live as long as the binding, which shares their memory on the CPU.
            assert values is not None
            self._session.run_with_iobinding(binding)

        return run

    def _fetched(self, fetch: Sequence[str] | None) -> list[str]:
        known = [info.name for info in self.outputs]
        if fetch is None:
            return known
        if isinstance(fetch, str):
            raise InputError(f"fetch must be a list of output names, got the string {fetch!r}: write [{fetch!r}]")
        for name in fetch:
            if name not in known:
                raise InputError(f"unknown output {name!r}: the program's outputs are {', '.join(known)}")
        return list(fetch)

    def _can_bind(self, values: Mapping[str, Any], fetch: Sequence[str]) -> bool:
        """Whether all inputs and outputs are tensors, and no input holds strings."""
        inputs = [info.numpy for info in self.inputs if info.name in values]
        outputs = [info.numpy for info in self.outputs if info.name in fetch]
        if any(dtype is None for dtype in outputs):
            return False
        return all(dtype is not None and dtype.kind != "O" for dtype in inputs)

    def _binding(
        self, values: Mapping[str, np.ndarray], fetch: Sequence[str], *, keep: bool = False
    ) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, to_ort(value))  # copies at once to the device that reads it
        infos = {info.name: info for info in self.outputs}
        for name in fetch:
            dtype = infos[name].numpy
            # ONNX Runtime keeps strings in main memory only, and its bindings read bfloat16 from there only.
            on_device = dtype is not None and dtype.kind != "O" and (keep or not is_extension(dtype))
            (self.place if on_device else CPUPlace()).bind_output(binding, name)
        return binding

    def _open(self, form: Openable) -> onnxruntime.InferenceSession:
        return self.place.open_session(form.model, form.settings)

    def _adopt(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.inputs = _infos(session.get_inputs(), required=True) + _infos(
            session.get_overridable_initializers(), required=False
        )
        self.outputs = _infos(session.get_outputs(), required=True)


def _infos(arguments: Sequence[Any], *, required: bool) -> tuple[ValueInfo, ...]:
    return tuple(_info(argument, required=required) for argument in arguments)


def _info(argument: Any, *, required: bool) -> ValueInfo:
    dtype = element_type(argument.type)
    if dtype is None:
        return ValueInfo(argument.name, argument.type, None, None, required)
    name = "string" if dtype == ir.DataType.STRING else dtype.numpy().name
    # ONNX Runtime shows no dimensions both for a scalar and for an unknown rank, so no dimensions count as unknown.
    shape = tuple(argument.shape) or None
    return ValueInfo(argument.name, name, shape, dtype.numpy(), required)
