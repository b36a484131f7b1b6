"""Makes differences between releases for models that do not exist, for tests of the forms that show them."""

import dataclasses

from amp_transpiler.report.release_difference import (
    CopyCount,
    DecisionChange,
    FaultChange,
    Fusion,
    OperatorCount,
    PlacementChange,
    ReleaseDeparture,
    ReleaseDifference,
    ReleaseRun,
    RunDifference,
)
from tests.report.diagnoses import HOSTILE, LONG, output

NOTHING = ReleaseDifference(
    source="model.onnx",
    low=None,
    old="1.24",
    new="1.31",
    target="cuda",
    device="H100",
    dtype="float16",
    level="O2",
    not_run="no interpreters were named that hold the releases",
)


def moved(node, model="float32", **facts):
    return PlacementChange(model=model, node=node, op="Pad", old="cpu", new="cuda", **facts)


def run(model="float32", *, old="", new="", stage="load", **facts):
    sides = [
        ReleaseRun(release=release, python="/env/bin/python", stage=stage if message else "", message=message)
        for release, message in (("1.24.4", old), ("1.31.1", new))
    ]
    return RunDifference(
        model=model, provider="CPUExecutionProvider", old=sides[0], new=sides[1], samples=2, given=True, **facts
    )


def ran(*runs):
    return dataclasses.replace(NOTHING, runs=runs, not_run="")


def departure(node, error, *, optimized=False, rounding=False):
    return ReleaseDeparture(node=node, op="Resize", value="v", error=error, optimized=optimized, rounding=rounding)


TABLES = dataclasses.replace(
    NOTHING,
    placement=(moved("/stem/Pad"), moved("/stem/Pad", "low"), moved(LONG, scope="loop/body")),
    copies=(CopyCount(model="float32", old=3, new=1, appearing=("n",), vanishing=("a", "b", "c")),),
    faults=(
        FaultChange(
            model="low", node="/head/MatMul", op="MatMul", release="1.31", table="fault", fault="a session crashes"
        ),
        FaultChange(model="low", node="", op="", release="1.24", table="limit", fault="reads opsets up to 22"),
    ),
    decisions=(
        DecisionChange(
            node="/pick", op="ArgMax", old="float32", new="float16", old_reason="no kernel", new_reason="level O2"
        ),
        DecisionChange(node="/new", op="Add", old="", new="float16", old_reason="", new_reason="level O2"),
    ),
    notes=("the tables of 1.31 decide",),
)

# What changes -> the difference, and words of its first sentence.
CASES = {
    "nothing": (NOTHING, "Nothing changes between ONNX Runtime 1.24 and 1.31 by the tables."),
    "tables": (
        TABLES,
        "3 nodes run elsewhere; copies between devices in the float32 model, from 3 to 1; 1 known fault",
    ),
    "the same results": (
        ran(run(outputs={"y": dataclasses.replace(output("y", relative=0.0), max_abs=0.0)})),
        "all results are the same to the last bit",
    ),
    "rounding": (
        ran(
            run(
                outputs={"y": output("y", relative=1e-6)},
                departures=(departure("/up", 1e-7, rounding=True),),
                operators=(OperatorCount(op="com.microsoft::Gelu", old=0, new=12),),
                fusions=tuple(
                    Fusion(release="1.31.1", op="com.microsoft::Gelu", value=f"g{i}", nodes=("a", "b", "c", "d", "e"))
                    for i in range(12)
                ),
            )
        ),
        "the results are the same but for rounding",
    ),
    "another result": (
        ran(
            run(
                "low",
                outputs={"y": output("y", relative=0.5)},
                excess=25.0,
                departures=(departure("/up", 1e-4, rounding=True), departure("/up2", float("inf"), optimized=True)),
            )
        ),
        "an output of the low model differs by 50%",
    ),
    "a refusal": (ran(run(new="Fail: no kernel")), "1.31.1 does not load the float32 model"),
    "a failing run": (ran(run(old="it crashed (SIGSEGV)", stage="run")), "1.24.4 does not run the float32 model"),
    "both refuse": (ran(run(old="Fail: a", new="Fail: b", notes=("a note",))), "no release runs"),
    "hostile names": (
        dataclasses.replace(TABLES, source=HOSTILE, placement=(moved(HOSTILE),), notes=(HOSTILE,)),
        "1 node runs elsewhere",
    ),
}
