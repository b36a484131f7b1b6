"""Adds dynamic loss scaling to a training step from elsewhere."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.precision.training.cotangents import Cotangents
from amp_transpiler.update_passes.loss_scaling import ScalingRule, found_not_finite, update_loss_scaling

__all__ = ["FIRST_SCALE", "RULE", "ScaleLoss", "Scaled"]

FIRST_SCALE = 2.0**15
RULE = ScalingRule(1000, 1, 2.0, 0.5)
"""Paddle's first scale and interval for float16; the scale halves at every bad step, since each one is lost."""

_NAMES = {"scale": "loss_scaling", "good": "num_good_steps", "bad": "num_bad_steps"}


@dataclasses.dataclass
class Scaled(PassResult):
    """Loss scaling inserted.

    Attributes:
        step: the training step with the new states.
    """

    step: TrainingStep = dataclasses.field(default_factory=lambda: TrainingStep(()))


class ScaleLoss(Pass[Scaled]):
    """Scales the backward pass of a training step dynamically; counts the values that it scales.

    1. The values that the backward pass begins with are multiplied by the scale. What depends on them is scaled.
    2. Whatever else reads a scaled value, the optimizer first of all, reads it divided by the scale, in float32.
    3. If a gradient is not finite then, every state but statistics keeps its value.
    4. Scale and counters of steps are new states: inputs with initial values, and outputs.
    5. What is inserted, and the arithmetic just before the backward pass, has the role `optimize`: it stays float32.

    Args:
        step: the states of this very model.
        found: its backward pass.
        first_scale: the first scale.
        rule: how the scale changes.
    """

    def __init__(
        self, step: TrainingStep, cotangents: Cotangents, first_scale: float = FIRST_SCALE, rule: ScalingRule = RULE
    ) -> None:
        self._step = step
        self._cotangents = cotangents
        self._first_scale = first_scale
        self._rule = rule

    def call(self, model: ir.Model) -> Scaled:
        edit = _Edit(model, self._cotangents)
        scale = edit.state_input(_NAMES["scale"], self._first_scale, ir.DataType.FLOAT)
        edit.scale_seeds(scale)
        gradients = edit.unscale(scale)
        builder = edit.builder()
        found_inf = found_not_finite(builder, gradients)
        for state in self._step.states:
            if state.role != "statistic":
                edit.guard(builder, state, found_inf)
        step = dataclasses.replace(
            self._step,
            states=(*self._step.states, *edit.update_scale(builder, scale, found_inf, self._rule)),
            loss_scale=str(scale.name),
        )
        return Scaled(model, modified=True, count=len(self._cotangents.seeds), step=step)


class _Edit:
    def __init__(self, model: ir.Model, cotangents: Cotangents) -> None:
        self._model = model
        self._graph = model.graph
        self._cotangents = cotangents
        self._names = NameAllocator(model)
        self._constants: GraphBuilder | None = None
        nodes = list(model.graph)
        self._behind = dict(itertools.pairwise(nodes))
        self._rank = {node: index for index, node in enumerate(nodes)}
        for node in cotangents.before:
            node.metadata_props[ROLE_KEY] = "optimize"

    def builder(self, before: ir.Node | None = None) -> GraphBuilder:
        """Return a builder that inserts before a node, or appends."""
        builder = GraphBuilder(
            self._model,
            before=before,
            names=self._names,
            metadata={ROLE_KEY: "optimize"},
            prefix="loss_scaling/",
            shares=self._constants,
        )
        self._constants = self._constants or builder
        return builder

    def state_input(self, name: str, initial: float, dtype: ir.DataType) -> ir.Value:
        """Add a scalar input with an initial value."""
        name = self._names.fresh(name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))
        value.const_value = ir.Tensor(np.array(initial, dtype.numpy()), dtype=dtype, name=name)
        self._graph.inputs.append(value)
        self._graph.register_initializer(value)
        return value

    def scale_seeds(self, scale: ir.Value) -> None:
        """Let the backward pass begin with scaled values."""
        for seed in self._cotangents.seeds:
            uses = [use for use in seed.uses() if self._cotangents.carries(use.node, use.idx)]
            if not uses:
                continue  # it is a gradient as it is
            scaled = _times(self.builder(min((use.node for use in uses), key=self._rank.__getitem__)), seed, scale)
            for use in uses:
                use.node.replace_input_with(use.idx, scaled)

    def unscale(self, scale: ir.Value) -> list[ir.Value]:
        """Let everything but the backward pass read unscaled values; return the gradients among them."""
        first = next(iter(self._graph))
        inverse = self.builder(first).div(1.0, scale)
        unscaled: dict[ir.Value, ir.Value] = {}
        for node in self._cotangents.carriers:
            for value in node.outputs:
                uses = [(use.node, use.idx) for use in value.uses() if not self._cotangents.carries(use.node, use.idx)]
                if uses or value.is_graph_output():
                    unscaled[value] = self._unscaled(value, uses, inverse)
        return [unscaled.get(value, value) for value in self._cotangents.gradients]

    def _unscaled(self, value: ir.Value, uses: list[tuple[ir.Node, int]], inverse: ir.Value) -> ir.Value:
        node = value.producer()
        assert node is not None  # it is the result of a node of the backward pass
        result = _times(self.builder(self._behind.get(node)), value, inverse)
        for reader, index in uses:
            reader.replace_input_with(index, result)
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                self._take_name(index, value, result, "scaled")
        return result

    def _take_name(self, index: int, old: ir.Value, new: ir.Value, why: str) -> None:
        """Let `new` be the graph's output `index` in the place of `old`."""
        new.name, old.name = old.name, self._names.fresh(f"{old.name}__amp_{why}")
        new.doc_string = old.doc_string
        self._graph.outputs[index] = new

    def guard(self, builder: GraphBuilder, state: State, found_inf: ir.Value) -> None:
        """Let a state keep its value if a gradient is not finite."""
        inputs = (*self._graph.inputs, *self._graph.initializers.values())
        old = next((value for value in inputs if value.name == state.input), None)
        for index, new in enumerate(self._graph.outputs):
            if new.name == state.output and old is not None and new is not old:
                guarded = builder.where(found_inf, old, new)
                guarded.shape = None if new.shape is None else ir.Shape(new.shape)
                self._take_name(index, new, guarded, "unguarded")

    def update_scale(
        self, builder: GraphBuilder, scale: ir.Value, found_inf: ir.Value, rule: ScalingRule
    ) -> list[State]:
        """Append the update of scale and counters; return them."""
        good = self.state_input(_NAMES["good"], 0, ir.DataType.INT32)
        bad = self.state_input(_NAMES["bad"], 0, ir.DataType.INT32) if rule.counts_bad_steps else None
        results = update_loss_scaling(builder, found_inf, scale, good, bad, rule)
        states = []
        for old, result in zip((scale, good, bad), results, strict=True):
            if old is not None and result is not None:
                new = builder.op("Identity", [old]) if result is old else result
                new.name = self._names.fresh(f"{old.name}_new")
                new.shape = ir.Shape([])
                self._graph.outputs.append(new)
                reason = "added with loss scaling"
                states.append(State(input=str(old.name), output=str(new.name), role="counter", reason=reason))
        return states


def _times(builder: GraphBuilder, value: ir.Value, factor: ir.Value) -> ir.Value:
    """Return `value` times a float32 scalar, in the type of `value`; 16-bit values are multiplied in float32."""
    if value.dtype == ir.DataType.DOUBLE:
        return builder.mul(value, builder.cast(factor, value.dtype))
    return builder.cast(builder.mul(builder.high(value), factor), value.dtype)
