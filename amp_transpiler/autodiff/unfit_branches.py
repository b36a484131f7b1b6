"""Branches that cannot run in the shapes that are fed: models keep one for each rate or length that they take.

ONNX Runtime checks shapes when it opens a step, so such a branch would keep the step from being opened, though it is
never taken. Another one stands in for it, that fails when it runs and says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.bodies import unlink
from amp_transpiler.errors import MisfitError
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of

__all__ = ["stand_in"]


def stand_in(
    builder: GraphBuilder, node: ir.Node, branch: str, others: Sequence[ir.Value], misfit: MisfitError
) -> None:
    """Replace a branch of an If, in place, by one that fails when it runs.

    Args:
        builder: makes nodes, of any graph.
        node: the If.
        branch: the attribute that holds the branch.
        others: what the other branch computes: the results get their types, and their sizes as far as they are known.
        misfit: why the branch cannot run.

    Raises:
        MisfitError: that, where a result is no tensor.
    """
    condition, dtypes = node.inputs[0], [value.dtype for value in others if value.dtype is not None]
    if condition is None or len(dtypes) < len(others):
        raise misfit
    body = node.attributes[branch].as_graph()
    graph = ir.Graph([], [], nodes=[], name=body.name)
    unlink(body)
    with builder.inside(graph):
        # One element does not fit a size of two or three. The size depends on the condition, so that it is unknown, and
        # ONNX Runtime takes the node, until the branch runs.
        more = builder.reshape(builder.cast(condition, ir.DataType.INT64), [1])
        failing = builder.op("Reshape", [builder.constant(np.zeros(1, np.int64)), builder.add(more, 2)])
        producer = failing.producer()
        assert producer is not None  # made above
        producer.name = builder.names.fresh(str(misfit).splitlines()[0])
        for value, dtype in zip(others, dtypes, strict=True):
            result = builder.explicit_cast(failing, dtype)
            if is_static(value):
                result = builder.reshape(result, shape_of(value))
            graph.outputs.append(result)
    node.attributes[branch] = ir.AttrGraph(branch, graph)
