"""`Session`: a program that is ready to run on a place."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.files.loading import load
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.runtime import ort
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds
from amp_transpiler.runtime.gemm_options import TilingAccum, check_tiling_accum, gemm_option, warn_without_effect
from amp_transpiler.runtime.openable import AnyProgram, Openable, guarded, openable
from amp_transpiler.runtime.opening import Opening, Wish, open_form, wish_for
from amp_transpiler.runtime.ort import RUN_ERRORS
from amp_transpiler.runtime.places import CPUPlace, Place, default_place
from amp_transpiler.runtime.provider_options import LAYOUTS, Layout, OptionsInUse
from amp_transpiler.runtime.values import element_type, from_ort, is_extension, run_session, to_ort

if TYPE_CHECKING:
    from amp_transpiler.runtime.cuda_graphs import Graph

__all__ = ["AnyProgram", "Session"]

_logger = logging.getLogger(__name__)

_NO_KERNEL = (
    "ONNX Runtime has no kernel for that there: open the model on another place, leave emulate=False out if its values "
    "are float16 or bfloat16, or convert it for a target that has the kernel"
)
_REFUSED = (
    f"Look for what is invalid with onnx.checker.check_model(model, full_check=True), and whether ONNX Runtime "
    f"{onnxruntime.__version__} knows the model's opset and operators"
)


_NO_WISH = Wish({}, cuda_graph=None, obstacle="")  # of a session that somebody else opened


class Session:
    """A program that is ready to run.

    Args:
        program: a program, the path of a model, an `onnx.ModelProto` or an `onnx_ir.Model`; never changed.
        place: where to run; None for the place that AMP_TRANSPILER_PLACE names, else CUDA if a device answers, else the
            CPU.
        emulate: on the CPU, run a program with float16 or bfloat16 values as the float32 program that rounds like it.
            ONNX Runtime's CPU provider computes float16 in float32 without rounding in between, and most bfloat16
            operators not at all. No effect on CUDA.
        tiling_accum: the type that float16 matrix products (MatMul, Gemm, and their fused forms) accumulate in:
            "fp32", or "low" for float16, on CUDA only. ONNX Runtime reads it once in a process, so all CUDA sessions
            of a process must have the same; sessions opened without this package are not seen. bfloat16 always
            accumulates in float32: a program without a float16 value runs with a warning.
        provider_options: options of ONNX Runtime's CUDA provider, over those of `provider_options.CUDA_OPTIONS`; on
            CUDA only.
        layout: on CUDA, the order of dimensions that convolutions and poolings compute in: "nchw", ONNX's, or "nhwc",
            channels last, which saves the changes of layout that cuDNN makes in every run and may add others at the
            borders. On an H100 it was right, and paid for ResNet-50 in float16 only. Before the first results, its
            second run is compared with that of a session in the default layout, which takes time and memory of both.
        cuda_graph: on CUDA, whether runs are captured once and then repeated as one launch, which saves the host's part
            of each kernel. None for where that is possible: all shapes are fixed, all nodes run on the device and none
            waits for the host. Only the thread that runs first uses the graph; others take a second session.
        cache: whether ONNX Runtime's optimized graph is kept in the user's cache folder and taken from there (see
            `graph_cache`). None for on CUDA only: on a CPU writing takes longer than it saves.

    As a context manager it is closed in the end.

    Attributes:
        place: where it runs.
        provider_options: the options that its provider runs with, a dictionary that is empty on the CPU; its `why` has
            the reason of each that is set, and printing it shows them.
        tf32: whether float32 products and convolutions may take TF32, with 10 bits of significand.
        cuda_graph: whether runs are captured.
        no_cuda_graph: why they are not, on CUDA; empty if they are.
        emulated: whether it runs emulated.
        inputs: the inputs, a `ValueInfo` each; those with a default are not `required`.
        outputs: the outputs.
        cpu_nodes: on CUDA, `OP NAME` of the nodes that run on the CPU; empty on the CPU.

    Raises:
        ModelError: the model cannot be read.
        OptionError: `tiling_accum` is neither "fp32" nor "low"; there is no such layout; `cuda_graph` is True and no
            graph is possible; or `provider_options` contradict it, or have one that computes something wrong.
        EnvironmentProblem: the place cannot be used; or `tiling_accum` is
            "low" on the CPU, differs from an earlier CUDA session's, or contradicts ORT_CUDA_GEMM_OPTIONS; or
            `provider_options`, another layout or a CUDA graph are asked for on the CPU.
        InputError: ONNX Runtime refuses the model; its own error is the cause.
    """

    _session: onnxruntime.InferenceSession | None
    _wish: Wish = _NO_WISH
    _in_default_layout: Callable[[], onnxruntime.InferenceSession] | None = None  # until the layouts were compared

    def __init__(
        self,
        program: AnyProgram,
        place: Place | None = None,
        *,
        emulate: bool = True,
        tiling_accum: TilingAccum = "fp32",
        provider_options: Mapping[str, str] | None = None,
        layout: Layout = "nchw",
        cuda_graph: bool | None = None,
        cache: bool | None = None,
    ) -> None:
        self.place: Place = default_place() if place is None else place
        check_tiling_accum(tiling_accum, self.place)
        if tiling_accum == "low" and not has_low_values(load(program), dtypes=(ir.DataType.FLOAT16,)):
            warn_without_effect()
        form = openable(program, self.place, emulate=emulate)
        if not emulate and self.place.in_main_memory:  # a path was not looked into
            form = dataclasses.replace(form, settings=guarded(form.settings, load(program), self.place))
        self._folder = None
        if form.folder is not None:
            self._folder = weakref.finalize(self, shutil.rmtree, form.folder, ignore_errors=True)
        self.emulated: bool = form.emulated
        if cache or (cache is None and self.place.has_provider_options):
            form = dataclasses.replace(form, settings=dataclasses.replace(form.settings, cached=True))
        wish = wish_for(program, self.place, provider_options, cuda_graph, layout)
        with gemm_option(tiling_accum, self.place):
            opening = _opening(form, program, self.place, wish)
        self._adopt(opening.session)
        self.cpu_nodes: tuple[str, ...] = opening.cpu_nodes
        self._no_graph = opening.no_cuda_graph
        # Other threads than the graph's take a second session, as do all if the device refuses to capture.
        reopen = functools.partial(_without_graph, program, self.place, tiling_accum, wish)
        self._graph: Graph | None = None
        if opening.cuda_graph:
            from amp_transpiler.runtime.cuda_graphs import Graph

            self._graph = Graph(opening.session, self.place, reopen)
        self._wish = wish
        if layout != "nchw":
            usual = dataclasses.replace(wish, options={**wish.options, **dict.fromkeys(LAYOUTS[layout], "0")})
            self._in_default_layout = functools.partial(_without_graph, program, self.place, tiling_accum, usual)
        self._log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def over(cls, session: onnxruntime.InferenceSession, place: Place) -> Session:
        """Return a `Session` of a session that is open on `place` already."""
        wrapper = cls.__new__(cls)
        wrapper.place, wrapper.emulated, wrapper.cpu_nodes = place, False, ()
        wrapper._folder, wrapper._graph, wrapper._no_graph = None, None, ""  # noqa: SLF001  its own class's
        wrapper._adopt(session)  # noqa: SLF001  its own class's
        return wrapper

    def close(self) -> None:
        """Give the session's memory back; it cannot run any more."""
        self._session = self._graph = None
        if self._folder is not None:
            self._folder()

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
            InputError: an input is missing, unknown, or of another type or rank; a fetched output does not exist; or
                ONNX Runtime failed while running.
            EnvironmentProblem: in the first run, another layout computes something else than the default one.
        """
        _check_order(feeds, fetch)
        self._open()
        names = self._fetched(fetch)
        if not names:
            return []  # ONNX Runtime takes an empty list to mean all outputs
        values = check_feeds(feeds, self.inputs)
        self._compare_layouts(values)
        return self._run(values, names)

    def _run(self, values: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        try:
            if self._graph is not None and (results := self._graph.run(values, names)) is not None:
                return results
            session = self._plain()
            if self.place.in_main_memory or not self._can_bind(values, names):
                return run_session(session, values, names)
            binding = self._binding(session, values, names)
            session.run_with_iobinding(binding)
        except RUN_ERRORS as error:
            raise self._clearer(error) from error
        return [from_ort(value) for value in binding.get_outputs()]

    def bind(self, feeds: Mapping[str, Any]) -> Callable[[], None]:
        """Return a function that runs once on these feeds and waits for the end.

        Inputs are on the device before it is called, and outputs stay there, so a call takes the program's own time.
        Programs with strings or sequences copy each time: ONNX Runtime cannot bind these.

        Raises:
            InputError: as `run`; the function that is returned raises it, too.
        """
        self._open()
        values = check_feeds(feeds, self.inputs)
        self._compare_layouts(values)
        names = [info.name for info in self.outputs]
        if self._graph is not None and (repeated := self._graph.bind(values)) is not None:
            return repeated
        session = self._plain()
        if not self._can_bind(values, names):

            def run_and_copy() -> None:
                try:
                    run_session(session, values, names)
                except RUN_ERRORS as error:
                    raise self._clearer(error) from error

            return run_and_copy
        try:
            binding = self._binding(session, values, names, keep=True)
        except RUN_ERRORS as error:
            raise self._clearer(error) from error

        def run() -> None:
            # `values` must live as long as the binding, which shares their memory on the CPU.
            assert values is not None
            try:
                session.run_with_iobinding(binding)
            except RUN_ERRORS as error:
                raise self._clearer(error) from error

        return run

    def _compare_layouts(self, values: Mapping[str, Any]) -> None:
        """Compare with the default layout before the first results of another one."""
        if self._in_default_layout is None:
            return
        from amp_transpiler.runtime.layout_check import compare_layouts

        names = [info.name for info in self.outputs]
        with Session.over(self._in_default_layout(), self.place) as usual:
            compare_layouts(lambda feeds: self._run(feeds, names), usual.run, values, self.outputs, repr(self))
        self._in_default_layout = None

    def _clearer(self, error: Exception) -> InputError:
        """Return an error of ONNX Runtime's run as one of this package."""
        if isinstance(error, InputError):
            return error
        # A session shows unknown ranks and scalars alike, so `check_feeds` cannot find every wrong rank.
        if ort.is_about_feeds(error):
            return InputError(ort.error_text(error))
        return InputError(f"{self!r} cannot run these inputs: {ort.error_text(error)}")

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
        self,
        session: onnxruntime.InferenceSession,
        values: Mapping[str, np.ndarray],
        fetch: Sequence[str],
        *,
        keep: bool = False,
    ) -> onnxruntime.IOBinding:
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, to_ort(value))  # copies at once to the device that reads it
        infos = {info.name: info for info in self.outputs}
        for name in fetch:
            dtype = infos[name].numpy
            # ONNX Runtime keeps strings in main memory only, and its bindings read bfloat16 from there only.
            on_device = dtype is not None and dtype.kind != "O" and (keep or not is_extension(dtype))
            (self.place if on_device else CPUPlace()).bind_output(binding, name)
        return binding

    def _plain(self) -> onnxruntime.InferenceSession:
        """Return the session, or a second one that captures nothing."""
        session = self._open()
        return session if self._graph is None else self._graph.plain()

    def _open(self) -> onnxruntime.InferenceSession:
        if self._session is None:
            raise InputError(f"{self!r} is closed: open another one")
        return self._session

    def _log(self) -> None:
        if self.cpu_nodes:
            _logger.info("%d nodes run on the CPU: %s", len(self.cpu_nodes), ", ".join(self.cpu_nodes))
        if self.place.has_provider_options:
            captured = "captured as a CUDA graph" if self.cuda_graph else f"no CUDA graph: {self.no_cuda_graph}"
            _logger.info("%s; float32 products %s TF32", captured, "may take" if self.tf32 else "do not take")

    @property
    def cuda_graph(self) -> bool:
        """Whether runs are captured."""
        return self._graph is not None and not self._graph.refused

    @property
    def no_cuda_graph(self) -> str:
        """Why runs are not captured; empty if they are, and on the CPU."""
        return self._no_graph if self._graph is None else self._graph.refused

    @property
    def provider_options(self) -> OptionsInUse:
        """The options that the place's provider runs with, and why those that are set are; empty on the CPU."""
        session = self._open()
        options = session.get_provider_options()[session.get_providers()[0]]
        return OptionsInUse(options, given=self._wish.given, use=self._wish.use, layout=self._wish.layout)

    @property
    def tf32(self) -> bool:
        """Whether float32 products and convolutions may take TF32, which has 10 bits of significand."""
        return self.place.has_tf32() and self.provider_options.get("use_tf32") == "1"

    def _adopt(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.inputs: tuple[ValueInfo, ...] = _infos(session.get_inputs(), required=True) + _infos(
            session.get_overridable_initializers(), required=False
        )
        self.outputs: tuple[ValueInfo, ...] = _infos(session.get_outputs(), required=True)


def _opening(form: Openable, program: AnyProgram, place: Place, wish: Wish) -> Opening:
    """Open a session of a program.

    Raises:
        InputError: ONNX Runtime refuses it.
        OptionError, EnvironmentProblem: see `open_form`.
    """
    try:
        return open_form(form, place, wish)
    except ort.ORT_ERRORS as error:
        refused, reason = load(program), ort.error_text(error).rstrip(". ")
        remedy = _NO_KERNEL if type(error).__name__ == "NotImplemented" else _REFUSED
        raise InputError(f"{refused!r} cannot be opened on {place}: {reason}. {remedy}") from error


def _without_graph(
    program: AnyProgram, place: Place, tiling_accum: TilingAccum, wish: Wish
) -> onnxruntime.InferenceSession:
    wish, form = dataclasses.replace(wish, cuda_graph=False, obstacle="a second session"), openable(program, place)
    with gemm_option(tiling_accum, place):
        session = _opening(form, program, place, wish).session
    if form.folder is not None:
        weakref.finalize(session, shutil.rmtree, form.folder, ignore_errors=True)
    return session


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


def _check_order(feeds: Any, fetch: Any) -> None:
    """Raise InputError for the arguments of ONNX Runtime's `InferenceSession.run`, which are in the other order."""
    if isinstance(fetch, Mapping) or feeds is None:
        names = "" if feeds is None else f", {feeds!r}"
        raise InputError(
            f"run: feeds is {type(feeds).__name__}, fetch {type(fetch).__name__}; the feeds come first here, not last "
            f"as in ONNX Runtime: write run(feeds{names}), or run(feeds) for all outputs"
        )
