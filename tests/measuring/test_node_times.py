"""ONNX Runtime's profile of a few runs, read."""

from amp_transpiler.measuring.node_times import read_profile


def run(at):
    return {"cat": "Session", "name": "model_run", "ts": at, "dur": 90}


def node(name, at, dur, operator, provider="CUDAExecutionProvider"):
    args = {"op_name": operator, "provider": provider}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": at, "dur": dur, "args": args}


CPU = "CPUExecutionProvider"
EVENTS = [
    run(0),
    node("a", 10, 900, "MatMul"),
    run(100),
    {"cat": "Node", "name": "a_fence_before", "ts": 105, "dur": 5, "args": {"op_name": "MatMul"}},
    node("a", 110, 40, "MatMul"),
    node("b", 120, 20, "MatMul"),
    node("c", 130, 10, "MemcpyToHost"),
    node("r", 140, 10, "Resize", CPU),
    node("d", 150, 20, "MemcpyFromHost"),
    run(200),
    node("a", 210, 40, "MatMul"),
    node("b", 220, 20, "MatMul"),
    node("c", 230, 10, "MemcpyToHost"),
    node("r", 240, 10, "Resize", CPU),
    node("d", 250, 20, "MemcpyFromHost"),
]


def test_operators_are_summed_over_the_runs_that_count():
    times = read_profile(EVENTS, on_device=True, runs=2)
    rows = [(row.operator, row.provider, row.nodes, row.milliseconds, row.share) for row in times.operators]
    assert rows[0] == ("MatMul", "CUDA", 2, 0.06, 0.6), "the first run, which also chooses algorithms, is left out"
    assert {row[0] for row in rows} == {"MatMul", "MemcpyToHost", "Resize", "MemcpyFromHost"}


def test_nodes_on_the_cpu_and_copies_are_named():
    times = read_profile(EVENTS, on_device=True, runs=2)
    assert times.cpu_nodes == ("Resize r",)
    assert times.copies == ("c (to the host)", "d (from the host)")
    assert read_profile(EVENTS, on_device=False, runs=2).cpu_nodes == ()


def test_an_empty_profile_has_nothing():
    assert read_profile([], on_device=True, runs=2).operators == ()
