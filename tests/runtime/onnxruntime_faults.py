"""Faults of ONNX Runtime that this package guards against: what happens, in which releases, what the guard is.

The releases are those that were tried, from 1.17 to 1.31. A test reproduces each fault, so that a release without it
shows up as a failing test, and the guard can go.
"""

from __future__ import annotations

import dataclasses

__all__ = ["FAULTS", "Fault", "table"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its guard.

    Attributes:
        name: two or three words.
        releases: those that have it.
        provider: `CPU`, `CUDA`, or `any`.
        symptom: what a user sees, and when.
        guards: the places in this package that avoid it or survive it, as dotted names below `amp_transpiler`.
        test: the test that reproduces it, below `tests/`.
    """

    name: str
    releases: str
    provider: str
    symptom: str
    guards: tuple[str, ...]
    test: str


_HERE = "runtime/test_faults.py"

FAULTS = (
    Fault(
        name="transposed batch",
        releases="1.23 to 1.31",
        provider="CPU",
        symptom="SIGSEGV when a default session opens a float16 MatMul of a matrix of weights and a Transpose that "
        "moves the first dimension next to the rows. MatmulTransposeFusion gives up half-way, and "
        "FuseFp16InitializerToFp32NodeTransformer follows what it leaves",
        guards=("passes.guard_transposes.GuardTransposes", "verification.default_session.open_as_users_do"),
        test=f"{_HERE}::test_a_transposed_batch_crashes",
    ),
    Fault(
        name="cast of a transposed batch",
        releases="1.31",
        provider="CUDA",
        symptom="FAIL (no kernel for Cast(-1)) when a session opens a MatMul whose operand is cast behind a "
        "Transpose that moves the first dimension next to the rows: MatmulTransposeFusion exchanges the two, gives "
        "up, and nothing looks up the new Cast",
        guards=("passes.guard_transposes.GuardTransposes",),
        test=f"{_HERE}::test_a_cast_of_a_transposed_batch_is_refused_on_cuda",
    ),
    Fault(
        name="cache in its own past",
        releases="1.31",
        provider="CUDA",
        symptom="FAIL (Shape mismatch attempting to re-use buffer) in each run of GroupQueryAttention whose cache "
        "grows, where a Cast makes the past: the cache is inferred to have the shape of its past, and planned into "
        "the memory of it",
        guards=("passes.guard_caches.GuardCaches",),
        test="test_decoders.py::test_a_cast_cache_that_grows_fails_without_its_guard",
    ),
    Fault(
        name="transposed matrix times vector",
        releases="1.17 to 1.31",
        provider="CPU",
        symptom="wrong numbers, without an error, from a MatMul of a Transpose and a vector: MatmulTransposeFusion "
        "writes a FusedMatMul, which multiplies the matrix as it was where the right operand has one dimension",
        guards=("passes.guard_vectors.GuardVectors", "runtime.openable.openable", "runtime.compile.compile_step"),
        test=f"{_HERE}::test_a_transposed_matrix_times_a_vector_is_wrong",
    ),
    Fault(
        name="sums into one row",
        releases="1.17 to 1.31",
        provider="CPU",
        symptom="wrong numbers, without an error, from a ScatterND that adds more than about 200,000 elements with "
        "several threads, where a row occurs more than once, as in the gradient of an embedding: threads that add to "
        "one row lose sums",
        guards=(
            "training_passes.split_scatters.SplitScatters",
            "runtime.compile.open_ready",
            "runtime.openable.guarded",
        ),
        test=f"{_HERE}::test_threads_that_add_to_one_row_lose_sums",
    ),
    Fault(
        name="nothing to scan",
        releases="1.20 to 1.31",
        provider="any",
        symptom="SIGFPE when a Scan runs along an axis other than the first, of length 0",
        guards=("child_process.child.Child", "verification.synthesis.synthesise_inputs"),
        test=f"{_HERE}::test_nothing_to_scan_crashes",
    ),
    Fault(
        name="smallest integer",
        releases="1.20 to 1.31",
        provider="CPU",
        symptom="SIGFPE when the smallest int64 is divided by -1",
        guards=("child_process.child.Child",),
        test=f"{_HERE}::test_the_smallest_integer_crashes",
    ),
    Fault(
        name="reciprocal of a removed node",
        releases="1.20 to 1.31",
        provider="any",
        symptom="INVALID_ARGUMENT when a session opens `Mul(x, Div(1, y))` where x comes from an Identity or a Cast "
        "that is removed: DivMulFusion leaves a node without its input",
        guards=("runtime.ort.create_session", "graph.builder.GraphBuilder.div"),
        test=f"{_HERE}::test_the_reciprocal_of_a_removed_node_is_refused",
    ),
    Fault(
        name="statistics written over constants",
        releases="1.17 to 1.31",
        provider="CPU",
        symptom="wrong numbers, without an error, from BatchNormalization in training mode whose running statistics "
        "are read by another node and begin as constants: the kernel writes them into the constants, which other "
        "inputs share, and the next run begins with them",
        guards=("training_passes.guard_statistics.GuardStatistics",),
        test=f"{_HERE}::test_statistics_are_written_over_constants",
    ),
    Fault(
        name="normalisation of mixed types",
        releases="1.31",
        provider="CUDA",
        symptom="NOT_IMPLEMENTED when a session opens: Pow to Mul become one SimplifiedLayerNormalization across "
        "casts, and no kernel takes bfloat16 on one side and float32 on the other",
        guards=("passes.guard_fusions.GuardFusions",),
        test=f"{_HERE}::test_a_normalisation_is_fused_from_pow_and_not_from_mul",
    ),
    Fault(
        name="dropped roundings",
        releases="1.20 to 1.31",
        provider="CPU",
        symptom="float16 nodes are computed in float32 without the rounding between them, at every level of "
        "optimisation: an overflow on CUDA is a number on the CPU",
        guards=("passes.emulate.emulate",),
        test="passes/test_emulate.py::test_onnx_runtime_s_own_cpu_drops_these_roundings",
    ),
    Fault(
        name="scatters that fail late",
        releases="1.20 to 1.31",
        provider="CPU",
        symptom="a registered float16 kernel of ScatterND or ScatterElements fails when it runs with a reduction",
        guards=("targets.refusals.REFUSALS",),
        test=f"{_HERE}::test_a_scatter_in_float16_fails_when_it_runs",
    ),
)
"""One row a fault."""


def table() -> str:
    """Return the faults as a table in Markdown."""
    lines = ["| fault | releases | provider | symptom | guard | test |", "|---|---|---|---|---|---|"]
    for fault in FAULTS:
        guards = ", ".join(f"`{guard}`" for guard in fault.guards)
        cells = (fault.name, fault.releases, fault.provider, fault.symptom, guards, f"`{fault.test}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
