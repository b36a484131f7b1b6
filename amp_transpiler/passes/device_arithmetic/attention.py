"""Attention as its two CUDA kernels compute it: flash attention, and the one that keeps all shares.

Sources: ONNX Runtime's llm/attention.cc and unfused_attention.cu; both agree with a device in every bit.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps, named
from amp_transpiler.passes.device_arithmetic.wide import computed_wide
from amp_transpiler.passes.device_arithmetic.write_out import write_out

__all__ = ["ATTENTION"]


_SMALLEST = 2.0**-126  # a normal number: shares of a row that is not masked sum up to 1 and more
_MASK = 3  # the index of the input
_PASSING = frozenset({"Cast", "CastLike", "Identity", "Where"})
"""Nodes between the shares and the product: rows that are masked throughout become 0 there."""


def attention_flash(node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Write flash attention: exponentials are rounded and multiplied, then divided by their sum."""
    return _attended(node, steps, flash=True)


def attention_unfused(node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Write attention whose shares are rounded before they are multiplied."""
    return _attended(node, steps, flash=False)


def _attended(node: ir.Node, steps: Steps, *, flash: bool) -> list[ir.Value]:
    """Compute Attention in float32 by its body, but for the shares; the whole in float32 where ONNX has no body."""
    results = computed_wide(node, steps)
    copy = results[0].producer()
    assert copy is not None
    _fill_missing_mask(copy, steps)
    written = write_out(steps.model, copy, steps.names)
    if written is None:
        return results
    softmax = next((inner for inner in written.nodes if inner.op_type == "Softmax"), None)
    product = None if softmax is None else _product_behind(softmax)
    if softmax is not None and product is not None:
        _round_shares(softmax, product, steps, flash=flash)
    return [result if new is None else new for result, new in zip(results, written.outputs, strict=True)]


def _fill_missing_mask(node: ir.Node, steps: Steps) -> None:
    """Add a mask of zeros where one is missing before a past: onnx's inliner fails on an empty input in between."""
    if len(node.inputs) <= _MASK + 1 or node.inputs[_MASK] is not None:
        return
    query, key, past = (steps.shape_in_run(node.inputs[index]) for index in (0, 1, _MASK + 1))
    if query is not None and key is not None:
        keys = key[-2] + (past[-2] if past is not None else 0)
        node.replace_input_with(_MASK, steps.constant(np.zeros((query[-2], keys), np.float32)))


def _product_behind(softmax: ir.Node) -> ir.Node | None:
    """Return the product that reads the shares, as they are or cast."""
    readers = [use.node for use in softmax.outputs[0].uses()]
    while readers:
        reader = readers.pop()
        if reader.op_type == "MatMul":
            return reader
        if reader.op_type in _PASSING:
            readers.extend(use.node for use in reader.outputs[0].uses())
    return None


def _round_shares(softmax: ir.Node, product: ir.Node, steps: Steps, *, flash: bool) -> None:
    """Let the product read what the kernel multiplies, and divide by the sum of the exponentials where it does."""
    before = Steps(steps.model, product, steps.shape_in_run, steps.draw, steps)
    before.low = steps.low
    scores = softmax.inputs[0]
    assert scores is not None
    if not flash:
        shares = product.inputs[0]  # behind the softmax, which makes NaN of rows that are masked throughout
        assert shares is not None
        product.replace_input_with(0, before.rounded(before.high(shares)))
        return
    wide = before.high(scores)
    exponentials = before.op("Exp", [before.sub(wide, before.reduce("ReduceMax", wide, [-1]))])
    weights = before.where(before.op("IsNaN", [exponentials]), 0.0, exponentials)  # a row that is masked throughout
    total = before.maximum(before.sum(weights, [-1]), _SMALLEST)
    product.replace_input_with(0, before.rounded(weights))
    summed = product.outputs[0]
    readers = list(summed.uses())
    behind = Steps(steps.model, readers[0].node, steps.shape_in_run, steps.draw, steps)
    quotient = behind.div(summed, total)
    for use in readers:
        use.node.replace_input_with(use.idx, quotient)


ATTENTION = named(attention_flash, attention_unfused)
"""Name in the table -> the rule."""
