"""Gives the parameters of a training step from elsewhere float32 master weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.graph.training_step import State, TrainingStep, master_name
from amp_transpiler.graph.walk import Scope, is_used, scopes
from amp_transpiler.ops.kinds import MOVEMENT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.precision.constraints import is_float32

__all__ = ["InsertMasters", "Mastered"]


@dataclasses.dataclass
class Mastered(PassResult):
    """Master weights inserted.

    Attributes:
        step: the training step with the new states.
    """

    step: TrainingStep = dataclasses.field(default_factory=lambda: TrainingStep(()))


class InsertMasters(Pass[Mastered]):
    """Gives parameters float32 master weights, so that they themselves may become low; counts them.

    The program stays float32 and computes the same, if a master is fed what its parameter is:

    1. A new input, the master, takes the parameter's place in the update: at every node of the role `optimize`, and at
       copies of nodes that only move values on their way there. All other nodes read the parameter.
    2. The master's new value is a new output, and the parameter's new value is a cast of it. The cast is to float32
       until the output becomes low.
    3. The master's initial value is the parameter's, unrounded, if that has one.

    A parameter stays as it is if it is no float32 input with an output, has a master, or the update does not read it.

    Args:
        step: the states of this very model.
        parameters: names of the inputs that get a master.
    """

    def __init__(self, step: TrainingStep, parameters: Collection[str]) -> None:
        self._step = step
        self._parameters = frozenset(parameters)

    def call(self, model: ir.Model) -> Mastered:
        edit, states, masters = _Edit(model), [], []
        for state in self._step.states:
            needs_master = state.input in self._parameters and not state.master
            master = edit.master_of(state) if needs_master else None
            states.append(state if master is None else dataclasses.replace(state, master=master.input))
            if master is not None:
                masters.append(master)
        step = dataclasses.replace(self._step, states=(*states, *masters))
        return Mastered(model, modified=bool(masters), count=len(masters), step=step)


class _Edit:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._names = NameAllocator(model)
        self._owners: dict[ir.Graph, Scope] = {scope.graph: scope for scope in scopes(model)}
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._outputs = {str(value.name): index for index, value in enumerate(model.graph.outputs)}

    def master_of(self, state: State) -> State | None:
        """Insert the master of one parameter; return its state, or None if there is nothing to do."""
        value, index = self._inputs.get(state.input), self._outputs.get(state.output)
        if value is None or index is None or not is_float32(value):
            return None
        new = self._graph.outputs[index]
        if not is_float32(new) or new.is_graph_input() or not self._is_of_the_update(value):
            return None
        master = self._master(value)
        self._route(value, master)
        self._cast_output(new, index, self._names.fresh(master_name(state.output)))
        reason = f"the float32 master weights of '{state.input}'"
        return State(input=str(master.name), output=str(new.name), role="moment", reason=reason)

    def _master(self, value: ir.Value) -> ir.Value:
        name = self._names.fresh(master_name(str(value.name)))
        master = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
        master.shape = None if value.shape is None else ir.Shape(value.shape)
        self._graph.inputs.append(master)
        if value.const_value is not None:
            tensor = value.const_value  # the source's own, which must keep its name
            shape = ir.Shape([int(size) for size in tensor.shape.numpy()])
            master.const_value = ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name)
            self._graph.register_initializer(master)
        return master

    def _cast_output(self, new: ir.Value, index: int, name: str) -> None:
        """Let the master's output be `new`, under `name`, and output `index` a cast of it that has the old name."""
        low = ir.Value(name=new.name, type=ir.TensorType(ir.DataType.FLOAT))
        low.shape = None if new.shape is None else ir.Shape(new.shape)
        low.doc_string = new.doc_string
        new.name = name
        cast = ir.Node(
            "",
            "Cast",
            [new],
            [ir.AttrInt64("to", int(ir.DataType.FLOAT))],
            outputs=[low],
            name=self._names.fresh(f"{name}__amp_cast"),
            metadata_props={ROLE_KEY: "optimize"},
        )
        cast.meta[INSERTED] = True
        self._graph.append(cast)
        self._graph.outputs[index] = low
        self._graph.outputs.append(new)

    # Which readers are the update's.

    def _route(self, value: ir.Value, master: ir.Value) -> None:
        """Let the update read `master` instead of `value`, through copies of nodes that others read too."""
        for use in list(value.uses()):
            node = use.node
            if self._optimizes(node):
                node.replace_input_with(use.idx, master)
            elif _moves(node) and any(map(self._is_of_the_update, node.outputs)):
                for old, copy in zip(node.outputs, self._copied(node, use.idx, master), strict=True):
                    self._route(old, copy)
                if not any(map(is_used, node.outputs)) and node.graph is not None:
                    node.graph.remove(node, safe=True)

    def _is_of_the_update(self, value: ir.Value) -> bool:
        """Whether the update reads a value, or what nodes that only move values make of it."""
        nodes = [use.node for use in value.uses()]
        if any(map(self._optimizes, nodes)):
            return True
        return any(self._is_of_the_update(output) for node in nodes if _moves(node) for output in node.outputs)

    def _optimizes(self, node: ir.Node) -> bool:
        """Whether a node, or the node whose body it is in, is part of the optimizer."""
        while role_of(node) != "optimize":
            scope = self._owners.get(node.graph) if isinstance(node.graph, ir.Graph) else None
            if scope is None or scope.owner is None:
                return False
            node = scope.owner
        return True

    def _copied(self, node: ir.Node, index: int, master: ir.Value) -> list[ir.Value]:
        """Put a copy of `node` that reads `master` as input `index` behind it, and return its outputs."""
        outputs = []
        for value in node.outputs:
            copy = ir.Value(name=self._names.fresh(f"{value.name}__amp_master"), type=value.type)
            copy.shape = None if value.shape is None else ir.Shape(value.shape)
            outputs.append(copy)
        duplicate = ir.Node(
            node.domain,
            node.op_type,
            [*node.inputs[:index], master, *node.inputs[index + 1 :]],
            list(node.attributes.values()),
            outputs=outputs,
            name=self._names.fresh(f"{node.name}__amp_master"),
            metadata_props={**node.metadata_props, ROLE_KEY: "optimize"},
        )
        node.append(duplicate)
        return outputs


def _moves(node: ir.Node) -> bool:
    return is_standard(node) and node.op_type in MOVEMENT
