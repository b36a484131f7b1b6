"""Sessions of ONNX Runtime on any list of providers: opening them quietly, its errors."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import TypeAlias

import onnxruntime

from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.targets import CPU, CUDA

__all__ = [
    "CPU_PROVIDER",
    "CUDA_PROVIDER",
    "IDLE_OPTIMIZERS",
    "ORT_ERRORS",
    "RUN_ERRORS",
    "Provider",
    "SessionSettings",
    "allowed_cores",
    "create_plain_session",
    "create_session",
    "error_text",
    "is_about_feeds",
    "nodes_on_cpu",
    "open_session",
]

Provider: TypeAlias = str | tuple[str, dict[str, str]]  # its name, with its options if it has any
CPU_PROVIDER = CPU.provider
CUDA_PROVIDER = CUDA.provider

_FATAL = 4  # the log severity above errors: ONNX Runtime raises every error, so printing it too only adds noise
# ONNX Runtime 1.31 fuses `Mul(x, Div(1, y))` wrongly where x comes from an Identity that it removes: the fused node
# has no input, and no session opens.
_BROKEN_OPTIMIZERS = ("DivMulFusion",)
_TRANSPOSING_OPTIMIZERS = ("MatmulTransposeFusion",)
_MERGING_OPTIMIZERS = ("CommonSubexpressionElimination",)
# In steps, ready nodes run in the order of their numbers. What these put in place of others gets the last numbers: it
# runs when no other node can, and what is computed for it stays in memory.
_DELAYING_OPTIMIZERS = ("GatherSliceToSplitFusion", "ReshapeFusion", "TransposeOptimizer")
# Each of them looks at every node and at every output of the graph, again and again, for what a step has none of once
# it is lowered: quantization, open sizes, shapes that are computed.
IDLE_OPTIMIZERS = (
    "ConstantSharing",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "FreeDimensionOverrideTransformer",
    "QDQPropagationTransformer",
    "ReshapeFusion",
    "WeightBiasQuantization",
    "WhereDummyDq",
)

_exceptions = onnxruntime.capi.onnxruntime_pybind11_state
ORT_ERRORS: tuple[type[Exception], ...] = (
    _exceptions.EPFail,
    _exceptions.EngineError,
    _exceptions.Fail,
    _exceptions.InvalidArgument,
    _exceptions.InvalidGraph,
    _exceptions.InvalidProtobuf,
    _exceptions.NoModel,
    _exceptions.NoSuchFile,
    _exceptions.NotImplemented,
    _exceptions.RuntimeException,
)
"""Raised by ONNX Runtime when it refuses a model or a run; `NotImplemented` means that a kernel is missing."""

RUN_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError)
"""Raised by a run: ONNX Runtime's own, and Python's RuntimeError where values are bound or lists are fed."""


def allowed_cores() -> int:
    """Return the number of cores that the process may use: all, or those that `taskset` or a container leaves it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session is opened.

    Attributes:
        optimize: whether ONNX Runtime may rewrite the graph.
        fuse: whether it may also fuse operators, which can swallow casts.
        fuse_transposes: whether it may fuse a Transpose and a MatMul; wrong where `graph.vector_products` finds any.
        lean: whether the memory of a result is free again when it was read for the last time. Otherwise ONNX Runtime
            plans memory ahead, which saves allocations and takes up to half as much again, twice in its arena; and it
            computes equal nodes once, which can keep a large result for a long time. Nodes run in the order of the
            file: ONNX Runtime's own order puts weight gradients off until all of a group are wanted.
        reuses: whether ONNX Runtime decides ahead which result may take the memory of an earlier one. That takes a time
            that grows with the square of the number of nodes, 15 times as long as all else for 2000 nodes; without it a
            result's memory is free again when it was read for the last time.
        planned: whether a second run takes all its memory at once, by what the first one took, and beside that. For few
            runs with large results this takes longer than it saves.
        quick: whether the optimizers are left out that cost much and find nothing in a step.
        threads: threads inside an operator; None: as many as the process has cores, which is ONNX Runtime's choice.
        spinning: whether threads spin while they wait for work, which is ONNX Runtime's choice: an answer comes some
            microseconds sooner, and the core is not free for others. No result depends on it.
        external_folder: where a serialised model's external data lies.
        record_assignment: remember the provider of each node, for `nodes_on_cpu`.
        provider_options: options of the place's own provider, as pairs (see `provider_options.CUDA_OPTIONS`).
        shared_memory: whether the session takes its memory from the allocator that the sessions of a place share.
        disabled: further optimizers that are left out: a model's own wish (see `session_options`).
        cached: whether the optimized graph may be taken from the cache, and kept there (see `graph_cache`).
        written_to: the file that ONNX Runtime writes the optimized graph to.
        profiled_to: the beginning of the name of a file that the times of all nodes are written to.
    """

    optimize: bool = True
    fuse: bool = True
    fuse_transposes: bool = True
    lean: bool = False
    reuses: bool = True
    planned: bool = True
    quick: bool = False
    threads: int | None = None
    spinning: bool = True
    external_folder: str | os.PathLike[str] | None = None
    record_assignment: bool = False
    provider_options: tuple[tuple[str, str], ...] = ()
    shared_memory: bool = False
    disabled: tuple[str, ...] = ()
    cached: bool = False
    written_to: str = ""
    profiled_to: str = ""

    def options(self) -> onnxruntime.SessionOptions:
        """Return the settings in ONNX Runtime's form."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL
        if not self.optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        elif not self.fuse:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        if self.lean or not self.planned:
            options.enable_mem_pattern = False
        if self.lean or not self.reuses:
            options.enable_mem_reuse = False
        if self.lean:
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        elif allowed_cores() < (os.cpu_count() or 1):  # ONNX Runtime would bind its threads to the other cores, too
            options.intra_op_num_threads = allowed_cores()
        self._add_entries(options)
        if self.written_to:
            options.optimized_model_filepath = self.written_to
        if self.profiled_to:
            options.enable_profiling, options.profile_file_prefix = True, self.profiled_to
        return options

    def _add_entries(self, options: onnxruntime.SessionOptions) -> None:
        """Add the settings that ONNX Runtime knows by a key."""
        if not self.spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.external_folder is not None:
            folder = os.fspath(self.external_folder)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        if self.record_assignment:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self.shared_memory:
            options.add_session_config_entry("session.use_env_allocators", "1")

    def disabled_optimizers(self) -> list[str]:
        """List what ONNX Runtime must not do, by its own names."""
        transposes = () if self.fuse_transposes else _TRANSPOSING_OPTIMIZERS
        merging = _MERGING_OPTIMIZERS if self.lean else ()
        idle = IDLE_OPTIMIZERS if self.quick else ()
        delaying = _DELAYING_OPTIMIZERS if self.lean and not self.quick else ()
        return [*_BROKEN_OPTIMIZERS, *transposes, *merging, *idle, *delaying, *self.disabled]


_DEFAULTS = SessionSettings()


def open_session(
    model: bytes | str | os.PathLike[str],
    settings: SessionSettings = _DEFAULTS,
    providers: Sequence[Provider] = (CPU_PROVIDER,),
) -> onnxruntime.InferenceSession:
    """Return a session of `model` that prints nothing. `Place.open_session` knows the providers of each device.

    Args:
        model: a serialised model, or the path of one.
        settings: how to open it.
        providers: ONNX Runtime's providers, the preferred one first.

    Raises:
        EnvironmentProblem: the session has other providers.
        ORT_ERRORS: ONNX Runtime refuses the model; `error_text` makes one line of such an error.
    """
    return create_session(model if isinstance(model, bytes) else os.fspath(model), settings, providers)


def create_session(
    model: bytes | str, settings: SessionSettings, providers: Sequence[Provider]
) -> onnxruntime.InferenceSession:
    """Return a session of `model`, without checking the installation.

    Raises:
        EnvironmentProblem: the session has other providers than it was asked for.
        ORT_ERRORS: ONNX Runtime refuses the model.
    """
    # A provider that fails to load is reported in red by the process-wide logger as well as by the session's.
    onnxruntime.set_default_logger_severity(_FATAL)
    # No fallback: ONNX Runtime would print() and switch providers without the caller's knowledge.
    session = onnxruntime.InferenceSession(
        model,
        settings.options(),
        providers=list(providers),
        enable_fallback=0,
        disabled_optimizers=settings.disabled_optimizers(),
    )
    return _on_its_providers(session, providers)


def create_plain_session(model: bytes | str, providers: Sequence[Provider]) -> onnxruntime.InferenceSession:
    """Return a session of `model` with ONNX Runtime's default options, as users open it. It may print.

    Raises:
        EnvironmentProblem: the session has other providers than it was asked for.
        ORT_ERRORS: ONNX Runtime refuses the model.
    """
    session = onnxruntime.InferenceSession(model, providers=list(providers), enable_fallback=0)
    return _on_its_providers(session, providers)


def _on_its_providers(
    session: onnxruntime.InferenceSession, providers: Sequence[Provider]
) -> onnxruntime.InferenceSession:
    """Return the session, if its providers begin with those that it was asked for.

    Without the fallback, too, ONNX Runtime goes on without a provider whose libraries do not load.
    """
    asked = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    opened = list(session.get_providers())
    if opened[: len(asked)] != asked:
        raise EnvironmentProblem(
            f"ONNX Runtime opened a session on {', '.join(opened)}, and was asked for {', '.join(asked)}: "
            "`amp-transpile doctor` says what is missing; use CPUPlace() to run on the CPU"
        )
    return session


def nodes_on_cpu(session: onnxruntime.InferenceSession) -> tuple[str, ...]:
    """Return `OP NAME` of the nodes that run on the CPU, of a session opened with `record_assignment=True`."""
    return tuple(
        f"{node.op_type} {node.name}".rstrip()
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == CPU_PROVIDER
        for node in part.get_nodes()
    )


_NO_OPERATOR = (
    re.compile(r'In Node, \("(?P<node>[^"]*)", (?P<operator>\w+), "(?P<domain>[^"]*)".* No Op registered for '),
    re.compile(r"Fatal error: (?P<domain>[^\s:]*):(?P<operator>\w+)\(-?\d+\) is not a registered function/op"),
)
"""What ONNX Runtime says of an operator that it does not have, such as a plugin."""


def error_text(error: BaseException, limit: int = 300) -> str:
    """Return the message of an ONNX Runtime error as one line, without its source paths, at most `limit` characters."""
    for pattern in _NO_OPERATOR:
        if match := pattern.search(" ".join(str(error).split())):
            name = "::".join(filter(None, (match["domain"], match["operator"])))
            return f"ONNX Runtime has no operator {name}, so a model with this plugin does not run here"
    text = re.sub(r"\S*/onnxruntime/core/\S+ .*?\)( const)? ", "", str(error))
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(text.split()))
    text = text or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def is_about_feeds(error: BaseException) -> bool:
    """Whether an error of a run says that an input has the wrong rank or a wrong dimension."""
    signs = ("Invalid rank for input", "Got invalid dimensions for input", "Unexpected input data type")
    return any(sign in str(error) for sign in signs)
