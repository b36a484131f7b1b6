"""Guards constants from a kernel of ONNX Runtime that writes over them."""

from __future__ import annotations

import logging

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["GuardStatistics"]

logger = logging.getLogger(__name__)

_STATISTICS = 3  # the place of the running mean among the inputs; the variance follows


class GuardStatistics(Pass[PassResult]):
    """Writes BatchNormalization in training mode as plain operators where its kernel spoils constants; counts them.

    The kernel writes running statistics into the buffers of those that it reads, unless they are outputs of the graph,
    as they are no more behind a cast. Where these are constants, the next run begins with others, and what shares the
    constant, as a scale of ones the variance, is wrong at once.
    """

    def call(self, model: ir.Model) -> PassResult:
        spoilt = [node for node in all_nodes(model) if _spoils(node)]
        if not spoilt:
            return PassResult(model, modified=False)
        infer_shapes(model)
        modes = [node for node in all_nodes(model) if _trains(node)]
        if any(node.inputs[0] is None or node.inputs[0].shape is None for node in modes):
            return PassResult(model, modified=False)  # they cannot be written out; the comparison will tell
        from amp_transpiler.training_passes.lower_batch_norm import LowerBatchNorm

        lowered = LowerBatchNorm()(model)
        logger.info("%d BatchNormalization in training mode written as plain operators", lowered.count)
        return PassResult(model, modified=lowered.modified, count=lowered.count)


def _trains(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and is_standard(node) and mode is not None and bool(mode.as_int())


def _spoils(node: ir.Node) -> bool:
    if not _trains(node):
        return False
    pairs = zip(node.inputs[_STATISTICS:], node.outputs[1:], strict=False)
    return any(constant_of(held) is not None and not new.is_graph_output() for held, new in pairs)
