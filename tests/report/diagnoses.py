"""Makes diagnoses of models that do not exist, for tests of the forms that show them."""

import dataclasses
import math

from amp_transpiler.precision.histogram import Histogram
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.diagnosis import Cure, Departure, Diagnosis, NodeDiagnosis, RunsOnDevice, Suspect

HOSTILE = "<script>alert('x')</script>&\x1b[31m\n\u202e[bold]"
LONG = "/model/" + "/".join(f"layers.{number}/self_attn" for number in range(6)) + "/MatMul"


def output(name="logits", *, relative=0.3, nonfinite=0, dtype="float32"):
    return OutputComparison(name, dtype, (1, 10), 0.5, relative, 0.9, nonfinite=nonfinite, elements=10)


def suspect(node, fault, why, *, op="Add", contribution=0.3):
    return Suspect(node=node, op=op, value=f"{node}_out", fault=fault, contribution=contribution, why=why)


def departure(node, *, op="Add", form="as written", **facts):
    return Departure(node=node, op=op, value=f"{node}_out", form=form, **{"error": 0.12, "allowed": 0.003, **facts})


def row(node, order, *, op="Add", value=None, precision="float16", **facts):
    return NodeDiagnosis(node=node, op=op, value=value or f"{node}_out", order=order, precision=precision, **facts)


def diagnosis(fault, why, *, node="/layer3/Add", op="Add", error=0.3, contribution=0.3, **facts):
    """Return a diagnosis of four nodes, the second of which is guilty."""
    guilty = suspect(node, fault, why, op=op, contribution=contribution)
    bad = {"error": error, "own_error": error, "contribution": contribution, "fault": fault}
    nodes = (
        row(
            "/layer2/Conv", 0, op="Conv", largest=900.0, smallest=1e-3, histogram=Histogram(-10, (1, 30, 5)), error=3e-4
        ),
        row(node, 1, op=op, largest=81240.0, smallest=2.0, histogram=Histogram(2, (8, 2, 0, 0, 0, 0, 0, 1)), **bad),
        row("/layer4/Relu", 2, op="Relu", error=error, contribution=1e-5),
        row("/head/Gemm", 3, op="Gemm", value="logits", precision="float32", error=error),
    )
    record = Diagnosis(
        source="model.onnx",
        low=None,
        dtype="float16",
        given=True,
        samples=4,
        passes=3,
        error=error,
        excess=error / 0.02,
        outputs={"logits": output(relative=error)},
        guilty=guilty,
        suspects=(guilty, suspect("/layer4/Relu", "rounding", "the outputs feel its rounding", contribution=1e-5)),
        path=(node, "/layer4/Relu", "/head/Gemm"),
        absorbed=None,
        nodes=nodes,
        cure=Cure(nodes=(node,), error=0.001, excess=0.05, runs=7),
    )
    return dataclasses.replace(record, **facts)


OVERFLOW = diagnosis(
    "overflow",
    "its sum reaches 81,240, and float16 ends at 65,504",
    error=math.inf,
    contribution=math.inf,
    excess=math.inf,
    outputs={"logits": output(relative=math.inf, nonfinite=3), "mask": output("mask", relative=0.0)},
    absorbed="/layer4/Relu",
)

NOTHING = dataclasses.replace(
    diagnosis("rounding", ""), error=0.001, excess=0.05, guilty=None, suspects=(), path=(), cure=None
)

CASES = {
    "overflow": (
        OVERFLOW,
        "'/layer3/Add' (Add) is to blame: its sum reaches 81,240, and float16 ends at 65,504. An output",
    ),
    "vanishing": (
        diagnosis("vanishing", "it averages 1e-9, and float16 begins at 6e-8.", op="ReduceMean"),
        "float16 begins at 6e-8. The largest error of an output is 30%, 15 times what is allowed.",
    ),
    "constant": (diagnosis("constant", "it reads -1e+09, and float16 ends at 65,504"), "it reads -1e+09"),
    "integers": (diagnosis("integers", "4 % of its indices differ", op="ArgMax"), "4 % of its indices differ"),
    "an output of integers": (
        diagnosis(
            "integers",
            "4 % of its indices differ",
            error=0.0,
            excess=20.0,
            outputs={"labels": dataclasses.replace(output("labels", relative=0.0, dtype="int64"), mismatched=2)},
        ),
        "4 % of its indices differ. 20% of an output's elements differ, 20 times what is allowed.",
    ),
    "kernel": (
        diagnosis("kernel", "CUDA's kernel adds in float16", error=0.001, excess=0.05),
        "The limits hold all the same: the largest error of an output is 0.1%, which is allowed.",
    ),
    "rounding": (diagnosis("rounding", "the outputs feel its rounding", excess=1e9), "far more than a million times"),
    "nothing wrong": (NOTHING, "Nothing is wrong: the largest error of an output is 0.1%, which is allowed."),
    "nobody is guilty": (
        dataclasses.replace(NOTHING, error=0.3, excess=15.0),
        "The outputs are wrong, but no node could be named that is to blame: the largest error",
    ),
    "nothing compared": (
        dataclasses.replace(NOTHING, outputs={}, nodes=(), error=0.0, excess=0.0),
        "Nothing is wrong: no outputs were compared.",
    ),
    "no cure": (diagnosis("overflow", "too large", cure=None), "too large"),
    "a mended model": (
        diagnosis(
            "overflow",
            "too large",
            cure=Cure(nodes=("a", "b"), error=1e-3, excess=0.5, runs=1, written="out.onnx"),
        ),
        "too large",
    ),
    "another format": (
        diagnosis("rounding", "too much", cure=Cure(nodes=(), error=1e-3, excess=0.5, runs=10, dtype="float16")),
        "too much",
    ),
    "powers of two": (
        diagnosis(
            "overflow",
            "too large",
            cure=Cure(nodes=("a", "b"), error=1e-3, excess=0.5, runs=10, rescaled={"w": -7, "eps of norm": -14}),
        ),
        "too large",
    ),
    "no number": (diagnosis("overflow", "too large", error=math.nan, contribution=math.nan, excess=math.nan), "NaN"),
    "a run on a device": (
        diagnosis(
            "kernel",
            "on NVIDIA H100 its result is 12% off the emulation",
            on_device=RunsOnDevice(
                device="NVIDIA H100",
                forms=("as written", "fused"),
                compared=40,
                departures=(departure("/layer3/Add"), departure(LONG, form="fused", infinite=0.25)),
            ),
        ),
        "on NVIDIA H100 its result is 12% off the emulation",
    ),
    "a device that agrees": (
        dataclasses.replace(
            NOTHING,
            on_device=RunsOnDevice(device="NVIDIA H100", forms=("as written",), compared=40, departures=()),
        ),
        "Nothing is wrong",
    ),
    "a foreign model": (
        diagnosis("overflow", "too large", low="foreign.onnx", unmatched=("x", "y", "z", "w"), given=False, samples=1),
        "too large",
    ),
    "hostile names": (
        diagnosis(
            "overflow",
            f"it reads {HOSTILE}",
            node=HOSTILE,
            op=HOSTILE,
            source=HOSTILE,
            low=HOSTILE,
            outputs={HOSTILE: output(HOSTILE)},
            absorbed=HOSTILE,
            unmatched=(HOSTILE,),
            notes=(HOSTILE,),
            cure=Cure(nodes=(HOSTILE,), error=0.1, excess=0.5, runs=2, written=HOSTILE),
        ),
        "is to blame",
    ),
    "long names": (
        diagnosis(
            "overflow",
            "too large",
            node=LONG,
            suspects=tuple(suspect(f"{LONG}_{number}", "overflow", "too large") for number in range(25)),
            path=tuple(f"{LONG}_{number}" for number in range(40)),
            cure=Cure(nodes=tuple(f"{LONG}_{number}" for number in range(30)), error=0.01, excess=0.5, runs=90),
        ),
        "is to blame",
    ),
}
"""Name -> the diagnosis, and a part of the sentences that answer the question."""


def of_many_nodes(count):
    """Return a diagnosis of many nodes, an overflow in the middle of them."""
    middle = count // 2
    nodes = tuple(
        row(
            f"/layer{number // 10}/node_{number}",
            number,
            op=("Conv", "Relu", "Add")[number % 3],
            precision="float32" if number % 17 == 0 else "float16",
            largest=2.0 ** (number % 20),
            smallest=2.0**-10,
            histogram=Histogram(-10, tuple(1 + (number * i) % 7 for i in range(1 + number % 9))),
            error=math.inf
            if middle <= number < middle + 3
            else 1e-4 * (1 + number % 13) * (50 if number > middle else 1),
            own_error=math.inf if number == middle else 1e-5 * (number % 11),
            infinite=0.01 if middle <= number < middle + 3 else 0.0,
            own_infinite=0.01 if number == middle else 0.0,
            vanished=0.001 * (number % 3),
            contribution=None if number % 5 == 0 else 1e-6 * (number % 11),
            fault="overflow" if number == middle else None,
        )
        for number in range(count)
    )
    names = tuple(node.node for node in nodes)
    guilty = suspect(
        names[middle], "overflow", "its sum reaches 81,240, and float16 ends at 65,504", contribution=math.inf
    )
    return dataclasses.replace(
        OVERFLOW,
        guilty=guilty,
        suspects=(guilty, *(suspect(name, "rounding", "its rounding", contribution=1e-5) for name in names[:12])),
        nodes=nodes,
        path=names[middle : middle + 9],
        absorbed=names[middle + 3],
    )
