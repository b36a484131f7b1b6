"""Everything that the package tells ONNX Runtime beside provider options: one row a setting, with its evidence.

The code that sets them is where it is needed (`ort.SessionSettings`, `runs`, `step_graphs`, `shared_memory`, ...); a
test reads the package's source and holds this table to it, in both directions. A setting that sessions on a device get
carries where it was seen to be right there and to pay, unless it changes nothing of what is computed.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from amp_transpiler.runtime.evidence import H100, Evidence

__all__ = ["RUNTIME_SETTINGS", "Kind", "RuntimeSetting"]

Kind: TypeAlias = Literal["session option", "session key", "run key", "arena", "optimizer", "environment"]
"""Whose setting it is: an attribute of `SessionOptions`, an entry of its or of `RunOptions`' configuration, a field of
an arena's, an optimizer that is switched off, or an environment variable."""


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeSetting:
    """One row of the table.

    Attributes:
        kind: whose setting it is.
        name: ONNX Runtime's name.
        value: what it is set to, in words where it varies.
        sessions: which sessions get it.
        why: the reason.
        evidence: where it was seen to be right and to pay; None where nothing that is computed on a device changes.
    """

    kind: Kind
    name: str
    value: str
    sessions: str
    why: str
    evidence: Evidence | None = None


_STEPS = "steps of training programs on a device"
_CPU_STEPS = "steps of training programs on a CPU"
_LATE = "nodes run in the order of the file, and these optimizers put new ones at its end: masks would live too long"
_IDLE = "it looks at every node of a step, and finds nothing there"

RUNTIME_SETTINGS = (
    # ---- what is said, recorded and found: nothing is computed otherwise ----
    RuntimeSetting(
        "session option", "log_severity_level", "fatal", "all", "every error is raised, printing adds noise"
    ),
    RuntimeSetting("session option", "optimized_model_filepath", "a file", "those of the graph cache", "it is kept"),
    RuntimeSetting("session option", "enable_profiling", "True", "those that are profiled", "the user asked for times"),
    RuntimeSetting("session option", "profile_file_prefix", "a path", "those that are profiled", "where times go"),
    RuntimeSetting(
        "session key",
        "session.model_external_initializers_file_folder_path",
        "a folder",
        "messages whose weights are in files",
        "a message does not say where they are",
    ),
    RuntimeSetting(
        "session key",
        "session.record_ep_graph_assignment_info",
        "1",
        "all on a device",
        "`Session.cpu_nodes` is read from it",
    ),
    RuntimeSetting(
        "session option",
        "intra_op_num_threads",
        "the cores that the process may use, or what the caller asks for",
        "all on a CPU, and CPU nodes on a device",
        "ONNX Runtime would bind threads to cores that `taskset` or a container forbids",
    ),
    RuntimeSetting(
        "environment",
        "ORT_DISABLE_TELEMETRY",
        "1",
        "all",
        "nothing is sent unless the user wants it (SECURITY.md)",
    ),
    RuntimeSetting(
        "environment",
        "ORT_CUDA_GEMM_OPTIONS",
        "1",
        "those with tiling_accum='low'",
        "the user asked for products that accumulate in float16; never set otherwise",
    ),
    # ---- graphs ----
    RuntimeSetting(
        "session option",
        "graph_optimization_level",
        "none or basic",
        "emulated ones, those of the graph cache, checks that only load",
        "a fusion would drop roundings that emulation stands for; a cached graph is optimized already. Sessions that "
        "users open on a device have ONNX Runtime's default",
    ),
    RuntimeSetting(
        "optimizer",
        "DivMulFusion",
        "off",
        "all",
        "ONNX Runtime 1.31 makes a node without an input where x of Mul(x, Div(1, y)) comes from an Identity",
        H100("PENDING default"),
    ),
    RuntimeSetting(
        "optimizer",
        "MatmulTransposeFusion",
        "off",
        "those with a product of a transposed vector",
        "it computes these wrongly (docs/onnxruntime_faults.md)",
        H100("PENDING default"),
    ),
    RuntimeSetting(
        "optimizer",
        "CommonSubexpressionElimination",
        "off",
        _STEPS,
        "it can keep a large result for a long time",
        H100("PENDING lean"),
    ),
    *(
        RuntimeSetting("optimizer", name, "off", _STEPS, _LATE, H100("PENDING in_order"))
        for name in ("GatherSliceToSplitFusion", "MatMulAddFusion", "ReshapeFusion", "TransposeOptimizer")
    ),
    *(
        RuntimeSetting("optimizer", name, "off", _CPU_STEPS, _IDLE)
        for name in (
            "ConstantSharing",
            "DoubleQDQPairsRemover",
            "EnsureUniqueDQForNodeUnit",
            "FreeDimensionOverrideTransformer",
            "QDQPropagationTransformer",
            "WeightBiasQuantization",
            "WhereDummyDq",
        )
    ),
    # ---- memory ----
    RuntimeSetting(
        "session option",
        "enable_mem_pattern",
        "False",
        _STEPS + ", and checks",
        "planning ahead takes up to half as much memory again",
        H100("PENDING lean"),
    ),
    RuntimeSetting(
        "session option",
        "enable_mem_reuse",
        "False",
        _STEPS,
        "the memory of a result is free when it was read for the last time",
        H100("PENDING lean"),
    ),
    RuntimeSetting(
        "session option",
        "execution_order",
        "PRIORITY_BASED",
        _STEPS,
        "ONNX Runtime's own order puts weight gradients off until all of a group are wanted",
        H100("PENDING lean"),
    ),
    RuntimeSetting(
        "session key",
        "session.use_env_allocators",
        "1",
        _STEPS,
        "sessions of many shapes share one arena",
        H100("PENDING shared"),
    ),
    RuntimeSetting(
        "arena",
        "arena_extend_strategy",
        "kSameAsRequested",
        _STEPS,
        "sizes are the same in each run",
        H100("PENDING arena"),
    ),
    RuntimeSetting(
        "arena",
        "max_dead_bytes_per_chunk",
        "1 MB",
        _STEPS,
        "by default up to 128 MB of each piece would be wasted",
        H100("PENDING dead"),
    ),
    RuntimeSetting(
        "run key",
        "memory.enable_memory_arena_shrinkage",
        "the device, or the CPU of a check",
        _STEPS + ", and checks, when a session is closed",
        "unused memory goes back",
        H100("PENDING shrink"),
    ),
    # ---- queues and graphs of a device ----
    RuntimeSetting(
        "run key",
        "disable_synchronize_execution_providers",
        "1",
        _STEPS,
        "the host queues the next step while the device computes this one; a value is waited for when it is read",
        H100("PENDING sync"),
    ),
    RuntimeSetting(
        "run key",
        "gpu_graph_id",
        "-1 for a run that is not captured, else the graph of a set of buffers",
        "those with a CUDA graph",
        "a step has two graphs that take turns",
        H100("PENDING graph"),
    ),
)
