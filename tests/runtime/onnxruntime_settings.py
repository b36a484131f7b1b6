"""Everything that the package tells ONNX Runtime beside provider options: one row a setting, with its evidence.

The code that sets them is where it is needed (`ort.SessionSettings`, `runs`, `step_graphs`, `shared_memory`, ...); a
test reads the package's source and holds this table to it, in both directions. A setting that sessions on a device get
carries where it was seen to be right there and to pay, unless it changes nothing of what is computed.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from amp_transpiler.runtime.ort import IDLE_OPTIMIZERS
from amp_transpiler.runtime.provider_options import H100, Evidence
from amp_transpiler.runtime.recommended_options import OPTIMIZERS

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


_RELEASES = "those of `debug --ort OLD NEW`, whose optimized graphs are compared"
_STEPS = "steps of training programs on a device"
_CPU_STEPS = "steps of training programs on a CPU"
_DELAYS = (
    "what it puts in place of other nodes runs when no other node can, and what is computed for it stays: ResNet-18 at "
    "O2 in bfloat16 would take 3729 MB instead of 1981, counted on stand-ins"
)
_IDLE = "it looks at every node of a step, and finds nothing there"

_AS_DEFAULT = H100("seven networks ran with it in both formats, with the outputs of ONNX Runtime's default sessions")
_LEAN = H100(
    "the same losses with all of these as without, at O2 in float16: AMD's network in 1296 MB instead of 2772, "
    "ResNet-18 in 2986 instead of 4950, 4 layers of BERT in 3652 instead of 3674; within 2 % of the time"
)

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
        "session key",
        "session.intra_op.allow_spinning",
        "0",
        "all on a CPU in the process that checks",
        "a thread that waits leaves its core to the process that asked: a fifth to a third less CPU time there",
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
        _AS_DEFAULT,
    ),
    RuntimeSetting(
        "optimizer",
        "MatmulTransposeFusion",
        "off",
        "those with a product of a transposed vector",
        "it computes these wrongly (docs/onnxruntime_faults.md)",
        _AS_DEFAULT,
    ),
    *(
        RuntimeSetting("optimizer", row.name, "off", "those of files that ask for it", row.why, row.evidence)
        for row in OPTIMIZERS.values()
    ),
    RuntimeSetting(
        "optimizer",
        "CommonSubexpressionElimination",
        "off",
        _STEPS,
        "it can keep a large result for a long time",
        _LEAN,
    ),
    RuntimeSetting(
        "optimizer",
        "GatherSliceToSplitFusion",
        "off",
        _STEPS,
        "what it puts in place of slices cuts all of them at once, when no other node can run: a loss of pieces would "
        "hold all pieces beside the whole",
    ),
    RuntimeSetting("optimizer", "ReshapeFusion", "off", _STEPS, _DELAYS),
    RuntimeSetting("optimizer", "TransposeOptimizer", "off", _STEPS, _DELAYS),
    *(RuntimeSetting("optimizer", name, "off", _CPU_STEPS, _IDLE) for name in IDLE_OPTIMIZERS),
    # ---- memory ----
    RuntimeSetting(
        "session option",
        "enable_mem_pattern",
        "False",
        _STEPS + ", and checks",
        "planning ahead takes up to half as much memory again",
        _LEAN,
    ),
    RuntimeSetting(
        "session option",
        "enable_mem_reuse",
        "False",
        _STEPS + ", and checks",
        "the memory of a result is free when it was read for the last time, and opening takes a time that grows with "
        "the nodes, not with their square",
        _LEAN,
    ),
    RuntimeSetting(
        "session option",
        "execution_order",
        "PRIORITY_BASED",
        _STEPS,
        "ONNX Runtime's own order puts weight gradients off until all of a group are wanted",
        _LEAN,
    ),
    RuntimeSetting(
        "session key",
        "session.use_env_allocators",
        "1",
        _STEPS,
        "sessions of many shapes share one arena",
        H100("4 layers of BERT at O2: the same losses, 3652 MB instead of 4754, 18.8 ms a step instead of 21.1"),
    ),
    RuntimeSetting(
        "session key",
        "session.optimized_model_external_initializers_file_name",
        "a file beside the optimized graph",
        _RELEASES,
        "an optimized graph with its weights in it may be larger than a protobuf message can be",
    ),
    RuntimeSetting(
        "session key",
        "session.optimized_model_external_initializers_min_size_in_bytes",
        "1024",
        _RELEASES,
        "small constants stay in the graph, where sizes and axes are read from them",
    ),
    RuntimeSetting(
        "arena",
        "arena_extend_strategy",
        "kSameAsRequested",
        _STEPS,
        "sizes are the same in each run",
        H100(
            "4 layers of BERT at O2: the same losses and time, 3652 MB instead of 3620; ResNet-18's step takes 1842 MB "
            "of the provider's arena instead of 2303 (counted without a device)"
        ),
    ),
    RuntimeSetting(
        "arena",
        "max_dead_bytes_per_chunk",
        "1 MB",
        _STEPS,
        "by default up to 128 MB of each piece would be wasted",
        H100(
            "4 layers of BERT at O2: the same losses, time and memory; ResNet-18's step takes 1842 MB of the "
            "provider's arena instead of 2271 (counted without a device)"
        ),
    ),
    RuntimeSetting(
        "run key",
        "memory.enable_memory_arena_shrinkage",
        "the device, or the CPU of a check",
        _STEPS + ", and checks, when a session is closed",
        "unused memory goes back",
        H100(
            "every step began with it, with the right losses; closed sessions leave nothing (counted without a device)"
        ),
    ),
    # ---- queues and graphs of a device ----
    RuntimeSetting(
        "run key",
        "disable_synchronize_execution_providers",
        "1",
        _STEPS,
        "the host queues the next step while the device computes this one; a value is waited for when it is read",
        H100("4 layers of BERT at O2, float16: the same losses, 18.8 ms a step in a loop instead of 21.3"),
    ),
    RuntimeSetting(
        "run key",
        "gpu_graph_id",
        "-1 for a run that is not captured, else the graph of a set of buffers",
        "those with a CUDA graph",
        "a step has two graphs that take turns",
        H100(
            "4 layers of BERT, AMD's network and ResNet-18 at O2: the same losses as without; 2 to 4 % faster in a loop"
        ),
    ),
)
