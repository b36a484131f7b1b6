"""How far a conversion's weights end from fp32's, and how far those of exact float32 masters do."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import amp_transpiler as amp  # before onnxruntime, whose telemetry it switches off

# isort: split

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from foreign.writer import Feed, ForeignStep

__all__ = ["CONVERSIONS", "DTYPES", "Outcome", "Trained", "convert", "masters_alone", "measure", "train"]

Dtype = Literal["float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float16", "bfloat16")

# The name of a column -> the options of `transpile`.
CONVERSIONS: dict[str, dict[str, Any]] = {
    **{level: {"level": level} for level in ("auto", "OD", "O1", "O2")},
    "O2, low": {"level": "O2", "keep_io_types": False},  # low parameters, with float32 masters
    **{policy: {"policy": policy} for policy in ("torch", "raf", "mxnet")},
    **{preset: {"preset": preset} for preset in ("mp1", "mp4", "default")},
}

# From a new state upward, an update goes through these; what is above them is the backward pass.
_UPDATE = frozenset(
    """Abs Add Cast Clip Concat Div Equal Expand Flatten Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mul
    Neg Not Pow Reciprocal Reshape Sign Slice Split Sqrt Squeeze Sub Sum Transpose Unsqueeze Where""".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """The states after some steps, and the loss before each."""

    states: Feed
    losses: list[float]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How far weights end from fp32's: norm of the difference over norm of fp32's movement, of all weights together.

    Attributes:
        relative: of the conversion.
        expected: of fp32 masters, where forward and backward pass alone are rounded, at the same nodes.
    """

    relative: float
    expected: float

    @property
    def holds(self) -> bool:
        """Whether it is what can be had: within 5 %, or 1.5 times what exact masters give."""
        return self.relative <= max(0.05, 1.5 * self.expected)


def convert(step: ForeignStep, options: Mapping[str, Any], dtype: Dtype) -> amp.Report:
    """Convert the step's model."""
    return amp.transpile(step.model, dtype=dtype, verify=False, **options, prefer="size")


def train(step: ForeignStep, batches: Sequence[Feed], model: onnx.ModelProto | amp.Report | None = None) -> Trained:
    """Run a step on batches, its states fed back.

    Args:
        step: the step.
        batches: inputs that are no state.
        model: another model with the same inputs and outputs, or a conversion, which runs emulated; the step's own
            unless given.
    """
    if isinstance(model, amp.Report):
        return _train_converted(step, batches, model)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = step.model if model is None else model
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [step.loss, *step.bindings.values()]
    state, losses = step.start, []
    for feed in batches:
        loss, *values = session.run(wanted, {**state, **feed})
        state = dict(zip(step.bindings, values, strict=True))
        losses.append(float(loss))
    return Trained(state, losses)


def _train_converted(step: ForeignStep, batches: Sequence[Feed], report: amp.Report) -> Trained:
    """Run a conversion. States that it added start from their own values, or from what they are masters of."""
    assert report.program is not None
    bindings = {state.input: state.output for state in report.states} or step.bindings
    masters = {state.input: state.master for state in report.states if state.master}
    session = amp.Session(report.program, amp.CPUPlace(), emulate=True)
    types = {info.name: info.numpy for info in session.inputs}
    first = {**step.start, **{master: step.start[name] for name, master in masters.items()}}
    state = {name: value.astype(types[name]) for name, value in first.items()}
    wanted, losses = [step.loss, *bindings.values()], []
    for feed in batches:
        feeds = {**state, **{name: value.astype(types[name]) for name, value in feed.items()}}
        loss, *values = session.run(feeds, wanted)
        state = dict(zip(bindings, values, strict=True))
        losses.append(float(loss))
    return Trained({name: state[masters.get(name, name)] for name in step.bindings}, losses)


def measure(step: ForeignStep, fp32: Trained, low: Trained) -> float:
    """Return norm of the difference over norm of the movement, over all parameters."""
    names = step.parameters
    start = _flat(step.start, names)
    moved, other = _flat(fp32.states, names) - start, _flat(low.states, names) - start
    return float(np.linalg.norm(other - moved) / np.linalg.norm(moved))


def _flat(values: Mapping[str, np.ndarray], names: Collection[str]) -> np.ndarray:
    return np.concatenate([values[name].astype(np.float64).reshape(-1) for name in names])


# ---- fp32 masters, with forward and backward pass rounded ----


def masters_alone(step: ForeignStep, report: amp.Report) -> onnx.ModelProto:
    """Return the source with a rounding before and behind each node that a conversion made low, but of the update.

    This is what the conversion could at best do. It shares with it which nodes are low, and no code.
    """
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    low = {row.name for row in report.decisions if row.precision in ("float16", "bfloat16")} - set(_update(step))
    to = TensorProto.FLOAT16 if report.dtype == "float16" else TensorProto.BFLOAT16
    floats = _floats(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.name not in low:
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            if name in floats:
                nodes += _rounding(name, rounded := f"{node.name}/in{index}", to)
                node.input[index] = rounded
        floats_of_node = [(index, name) for index, name in enumerate(node.output) if name in floats]
        for index, _ in floats_of_node:
            node.output[index] = f"{node.name}/out{index}"
        nodes.append(node)
        for index, name in floats_of_node:
            nodes += _rounding(f"{node.name}/out{index}", name, to)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _rounding(name: str, result: str, to: int) -> Iterator[onnx.NodeProto]:
    yield helper.make_node("Cast", [name], [f"{result}/low"], to=to)
    yield helper.make_node("Cast", [f"{result}/low"], [result], to=TensorProto.FLOAT)


def _floats(model: onnx.ModelProto) -> set[str]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    values |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name for name, kind in values.items() if kind == TensorProto.FLOAT}


def _update(step: ForeignStep) -> Iterator[str]:
    """Yield the names of the nodes of the update."""
    makers = {name: node for node in step.model.graph.node for name in node.output}
    pending, seen = list(step.bindings.values()), set()
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.name in seen or node.op_type not in _UPDATE:
            continue
        seen.add(node.name)
        yield node.name
        pending += node.input
