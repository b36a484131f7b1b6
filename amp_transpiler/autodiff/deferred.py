"""Gradients that wait for the sizes of what is fed: a node in their place, and its expansion once they are known.

The rules of pools, resizes and convolutions need sizes as numbers. Where a program leaves them free, the backward pass
gets a node of a domain of our own, `amp_transpiler::Gradient`, that reads what the rule may read: inputs and outputs of
the node and the gradients of its outputs. Gradients have the shapes and element types of their values, so the rest of
the backward pass can be written. A step is compiled for fed shapes; then every such node is replaced by what its rule
makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.bodies import discard
from amp_transpiler.autodiff.refusals import SizesUnknown
from amp_transpiler.autodiff.unfit_branches import stand_in
from amp_transpiler.errors import MisfitError, ModelError
from amp_transpiler.graph.builder import GraphBuilder, is_static
from amp_transpiler.graph.constness import constant_array, constant_of
from amp_transpiler.graph.deferred_nodes import WAITING_DOMAIN, waiting_nodes
from amp_transpiler.graph.evaluate import MOST_ELEMENTS, evaluate
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.walk import bodies, has_bodies
from amp_transpiler.ops.names import is_standard

__all__ = ["Expansion", "append_deferred", "expand_deferred"]

_OPERATOR = "Gradient"

Expansion = Callable[[ir.Node, GraphBuilder, "Sequence[ir.Value | None]", "Sequence[ir.Value]"], "list[ir.Value]"]
"""Node, builder, gradients of its outputs, the inputs that count -> their gradients."""


def append_deferred(
    builder: GraphBuilder, node: ir.Node, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    """Append a node that stands for the gradients of `node`; return the wanted inputs with theirs.

    Args:
        builder: appends the backward pass.
        node: the node, without bodies.
        grads: gradient of each output, None where it has none.
        wanted: the inputs that count, each once.
    """
    results = []
    for value in wanted:
        result = ir.Value(name=builder.names.fresh(f"{builder.prefix}Gradient_out"), type=value.type)
        result.shape = None if value.shape is None else ir.Shape(value.shape)
        results.append(result)
    inputs = [*node.inputs, *(value if value.name else None for value in node.outputs), *grads]
    places = [list(node.inputs).index(value) for value in wanted]
    builder.graph.append(
        ir.Node(
            WAITING_DOMAIN,
            _OPERATOR,
            inputs,
            [
                ir.AttrInt64("inputs", len(node.inputs)),
                ir.AttrInt64("outputs", len(node.outputs)),
                ir.AttrInt64s("wanted", places),
            ],
            outputs=results,
            name=builder.names.fresh(f"{builder.prefix}{_OPERATOR}"),
            metadata_props=builder.node_metadata(),
        )
    )
    builder.model.graph.opset_imports.setdefault(WAITING_DOMAIN, 1)
    return list(zip(wanted, results, strict=True))


def expand_deferred(model: ir.Model, expansion: Expansion) -> None:
    """Replace every node that waits for sizes by the gradient of the node it stands for, in place.

    The sizes of the graph's inputs must be known. Those of all other values follow, node by node, and so do the numbers
    that are computed from sizes; they become constants. An If gets the branch that sizes choose; see `stand_in` for
    branches that do not fit them.

    Args:
        model: the model.
        expansion: makes the gradients.

    Raises:
        ModelError: sizes of a node depend on more than the shapes that are fed.
    """
    if waiting_nodes(model) or any(node.op_type == "If" and is_standard(node) for node in model.graph):
        _Expander(model, expansion).run(model.graph)
        model.graph.opset_imports.pop(WAITING_DOMAIN, None)


class _Expander:
    def __init__(self, model: ir.Model, expansion: Expansion) -> None:
        self._model, self._expansion = model, expansion
        self._builder = GraphBuilder(model, prefix="backward/")
        self._contents: dict[ir.Value, np.ndarray] = {}

    def run(self, graph: ir.Graph) -> None:
        self._walk(graph, list(graph))

    def _walk(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
        for node in nodes:
            if node.graph is not graph:
                continue  # removed meanwhile
            if node.domain == WAITING_DOMAIN:
                self._expand(graph, node)
            elif (branch := self._taken(node)) is not None:
                self._walk(graph, _inlined(graph, node, branch))
            elif has_bodies(node):
                self._enter(node)
            else:
                self._know(node)

    def _taken(self, node: ir.Node) -> ir.Graph | None:
        """Return the branch of an If that runs, if that follows from sizes."""
        if not is_standard(node) or node.op_type != "If" or any(value.is_graph_output() for value in node.outputs):
            return None
        condition = None if node.inputs[0] is None else self._array(node.inputs[0])
        if condition is None:
            return None
        return node.attributes["then_branch" if condition.any() else "else_branch"].as_graph()

    # ---- what is known ----

    def _know(self, node: ir.Node) -> None:
        """Work out the sizes of a node's results, and what they hold if that follows from sizes."""
        self._fold(node)
        if node.graph is None or node.op_type == "Constant" or all(is_static(value) for value in node.outputs):
            return
        before = [value.shape for value in node.outputs]
        if node.op_type == "STFT" and is_standard(node) and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)  # the default; ONNX's inference takes 0 for it
        try:
            infer_outputs(self._model, node)
        except ModelError:
            if is_standard(node):
                raise
            _like_the_first_input(node)
        for value, shape in zip(node.outputs, before, strict=True):
            if shape is not None and (value.shape is None or _known_sizes(shape) > _known_sizes(value.shape)):
                value.shape = shape

    def _fold(self, node: ir.Node) -> None:
        content = self._content_of(node)
        if content is None or node.outputs[0].is_graph_output():
            return
        result = node.outputs[0]
        constant = self._builder.constant(content, result.dtype)
        self._contents[constant] = content
        result.replace_all_uses_with(constant)
        remove_unread(node)

    def _content_of(self, node: ir.Node) -> np.ndarray | None:
        if not is_standard(node) or node.op_type == "Constant" or len(node.outputs) != 1:
            return None
        first = node.inputs[0] if node.inputs else None
        if node.op_type in ("Shape", "Size"):
            if first is None or first.shape is None or not is_static(first):
                return None
            sizes = np.array([int(size) for size in first.shape], np.int64)  # type: ignore[arg-type]  # is_static
            if node.op_type == "Size":
                return np.array(np.prod(sizes), np.int64)
            return sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]
        arrays = [None if value is None else self._array(value) for value in node.inputs]
        known = all(array is not None or value is None for array, value in zip(arrays, node.inputs, strict=True))
        if not arrays or not known:
            return None
        if node.op_type == "NonZero":
            return None if arrays[0] is None else np.array(np.nonzero(arrays[0]), np.int64)
        return evaluate(node, arrays)

    def _array(self, value: ir.Value) -> np.ndarray | None:
        if value not in self._contents:
            tensor = constant_of(value)  # None for the numbers of a Constant's `value_ints`, too
            array = None if tensor is not None and tensor.size > MOST_ELEMENTS else constant_array(value)
            if array is None:
                return None
            self._contents[value] = array
        return self._contents[value]

    def _enter(self, node: ir.Node) -> None:
        """Go through the bodies of a node; a Scan's get the sizes of what it slices along the first axis."""
        if is_standard(node) and node.op_type == "If":
            self._enter_branches(node)
            return
        for _, body in bodies(node):
            if is_standard(node) and node.op_type == "Scan" and len(body.inputs) == len(node.inputs):
                states = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
                for index, (inner, outer) in enumerate(zip(body.inputs, node.inputs, strict=True)):
                    if outer is not None and outer.shape is not None and is_static(outer):
                        inner.shape = ir.Shape(list(outer.shape)[int(index >= states) :])
            self.run(body)

    def _enter_branches(self, node: ir.Node) -> None:
        """Go through the branches of an If whose condition is data. One of them has to fit the sizes."""
        fitting: dict[str, Sequence[ir.Value]] = {}
        misfits: dict[str, MisfitError] = {}
        for name, body in bodies(node):
            try:
                self.run(body)
                fitting[name] = body.outputs
            except MisfitError as error:
                if misfits:
                    raise next(iter(misfits.values())) from None
                misfits[name] = error
        for name, misfit in misfits.items():
            [others] = fitting.values()
            stand_in(self._builder, node, name, others, misfit)
        for value, *branch_results in zip(node.outputs, *fitting.values(), strict=True):
            value.shape = _in_common([result.shape for result in branch_results]) or value.shape

    # ---- expanding ----

    def _expand(self, graph: ir.Graph, node: ir.Node) -> None:
        count, outputs = node.attributes.get_int("inputs", 0), node.attributes.get_int("outputs", 0)
        results = [value for value in node.inputs[count : count + outputs] if value is not None]
        source = results[0].producer() if results else None
        if source is None:
            raise ModelError(f"'{node.name}' stands for the gradient of a node that is no longer there")
        grads = list(node.inputs[count + outputs :])
        for grad, value in zip(grads, source.outputs, strict=False):
            if grad is not None and value.shape is not None:
                grad.shape = ir.Shape(value.shape)
        wanted = [source.inputs[place] for place in node.attributes.get_ints("wanted", ())]
        builder = GraphBuilder(
            self._model,
            graph=graph,
            before=node,
            names=self._builder.names,
            metadata=dict(node.metadata_props),
            prefix=self._builder.prefix,
            shares=self._builder,
        )
        try:
            expanded = self._expansion(source, builder, grads, [value for value in wanted if value is not None])
        except ModelError as error:
            if not isinstance(error.__cause__, SizesUnknown):
                raise
            raise ModelError(f"{error}; the sizes do not follow from the shapes that are fed") from None
        for old, new in zip(node.outputs, expanded, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _inlined(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> list[ir.Node]:
    """Put the nodes of a branch in the place of an If; return them."""
    nodes, outputs = list(branch), list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        del branch.initializers[str(value.name)]
        graph.register_initializer(value)
    for inner in nodes:
        branch.remove(inner)
        graph.insert_before(node, inner)
    for value, result in zip(node.outputs, outputs, strict=True):
        value.replace_all_uses_with(result)
    discard(graph, node)
    return nodes


def _in_common(shapes: Sequence[ir.Shape | None]) -> ir.Shape | None:
    """Return the sizes that shapes agree on, others open; None where their ranks differ, or one is not known."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    return ir.Shape([sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*known, strict=True)])


def _known_sizes(shape: Iterable[object]) -> int:
    return sum(isinstance(size, int) for size in shape)


def _like_the_first_input(node: ir.Node) -> None:
    """Give the result of an operator that ONNX does not know the shape that such operators mostly keep."""
    first = node.inputs[0] if node.inputs else None
    if first is not None and first.shape is not None and node.outputs[0].shape is None:
        node.outputs[0].shape = ir.Shape(first.shape)
