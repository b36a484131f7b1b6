"""Opening sessions with the options of their place's provider, and with a CUDA graph where one is possible."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping

import onnx
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program
from amp_transpiler.runtime import ort
from amp_transpiler.runtime.openable import Openable
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.provider_options import LAYOUTS, Layout, Use, refuse_options
from amp_transpiler.runtime.session_options import session_options

__all__ = ["Opening", "Wish", "open_form", "open_with_options", "wish_for"]

_logger = logging.getLogger(__name__)

_GRAPH = "enable_cuda_graph"


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """How a session is to be opened.

    Attributes:
        options: options of the place's provider.
        given: those of them that the caller gave.
        use: the kind of session; None where the place's provider has no options.
        layout: the order of dimensions that convolutions compute in.
        disabled: optimizers of ONNX Runtime that the model's metadata ask to leave out.
        cuda_graph: True for a CUDA graph or an error, None for one if possible.
        obstacle: why there can be no CUDA graph, as far as the program tells.
    """

    options: Mapping[str, str]
    cuda_graph: bool | None
    obstacle: str
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    use: Use | None = None
    layout: Layout = "nchw"
    disabled: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """An open session.

    Attributes:
        session: the session.
        cuda_graph: whether its runs are captured.
        no_cuda_graph: why not, on a place that could; else empty.
        cpu_nodes: on a device, `OP NAME` of the nodes that run on the CPU.
    """

    session: onnxruntime.InferenceSession
    cuda_graph: bool = False
    no_cuda_graph: str = ""
    cpu_nodes: tuple[str, ...] = ()


def wish_for(
    program: Program | str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    place: Place,
    provider_options: Mapping[str, str] | None,
    cuda_graph: bool | None,
    layout: Layout = "nchw",
) -> Wish:
    """Return how to open a session of a program: the table's options, and what the caller has instead.

    Raises:
        OptionError: the program cannot be captured and has to be, or the arguments contradict each other; an option is
            one that computes something wrong; there is no such layout.
        EnvironmentProblem: options, a graph or a layout are asked for where there are none.
    """
    if layout not in LAYOUTS:
        raise OptionError(f"layout is {layout!r}: expected {' or '.join(map(repr, LAYOUTS))}")
    caller_options = {name: str(value) for name, value in (provider_options or {}).items()}
    if not place.has_provider_options:
        other = layout != "nchw"
        asks = ((caller_options, "provider_options"), (cuda_graph, "cuda_graph=True"), (other, f"layout={layout!r}"))
        for asked, name in asks:
            if asked:
                raise EnvironmentProblem(f"{name} is for ONNX Runtime's CUDA provider, but this runs on {place}")
        return Wish({}, False, "")
    refuse_options(caller_options, ("fixed", "free"))
    if _GRAPH in caller_options:
        captured = caller_options.pop(_GRAPH).lower() not in {"0", "false"}
        if cuda_graph is not None and cuda_graph != captured:
            raise OptionError(
                f"cuda_graph={cuda_graph}, but provider_options has {_GRAPH}={captured}: give one of them"
            )
        cuda_graph = captured
    from amp_transpiler.runtime.cuda_graphs import obstacle

    loaded = load(program)
    reason = "cuda_graph=False" if cuda_graph is False else obstacle(loaded)
    if cuda_graph and reason:
        raise OptionError(f"cuda_graph=True, but no graph is possible: {reason}")
    use: Use = "fixed" if _is_fixed(loaded) else "free"
    options = {**place.options_for(use), **LAYOUTS[layout], **caller_options}
    return Wish(options, cuda_graph, reason, caller_options, use, layout, session_options(loaded).disabled)


def open_form(form: Openable, place: Place, wish: Wish) -> Opening:
    """Open a session as it is wished.

    Raises:
        OptionError: a CUDA graph is not possible, and has to be.
        EnvironmentProblem: the place cannot be used, or does not know an option.
        ORT_ERRORS: ONNX Runtime refuses the model.
    """
    if place.in_main_memory:
        return Opening(place.open_session(form.model, form.settings))
    error, why = None, wish.obstacle
    if place.has_provider_options and not why:
        try:
            session = _opened(form, place, wish, {_GRAPH: "1"})
            return Opening(session, cuda_graph=True, cpu_nodes=ort.nodes_on_cpu(session))
        except ort.ORT_ERRORS as refused:  # by the model or by the graph: without one it will be seen
            error, why = refused, ort.error_text(refused)
    session = _opened(form, place, wish, {})
    nodes = ort.nodes_on_cpu(session)
    if error and nodes:
        why = f"{len(nodes)} of its nodes run on the CPU: {first_few(nodes, 5)}"
    if wish.cuda_graph:
        raise OptionError(f"cuda_graph=True, but no graph is possible: {why}") from error
    return Opening(session, no_cuda_graph=why, cpu_nodes=nodes)


def _opened(form: Openable, place: Place, wish: Wish, more: Mapping[str, str]) -> onnxruntime.InferenceSession:
    options = {**wish.options, **more}
    settings = dataclasses.replace(form.settings, provider_options=tuple(options.items()), disabled=wish.disabled)
    return open_with_options(form.model, settings, place)


def open_with_options(
    model: bytes | str | os.PathLike[str], settings: ort.SessionSettings, place: Place
) -> onnxruntime.InferenceSession:
    """Open a session as `Place.open_session` does.

    Raises:
        EnvironmentProblem: the place cannot be used, or does not know an option of its provider.
        ORT_ERRORS: ONNX Runtime refuses the model.
    """
    try:
        return place.open_session(model, settings)
    except (RuntimeError, ValueError) as error:
        if "provider option" in str(error) or "provider_options" in str(error):
            raise EnvironmentProblem(f"{place} refuses an option: {ort.error_text(error)}") from error
        raise


def _is_fixed(program: Program) -> bool:
    shapes = [value.shape for value in program.model.graph.inputs if isinstance(value.type, ir.TensorType)]
    return all(shape is not None and all(isinstance(size, int) for size in shape) for shape in shapes)
