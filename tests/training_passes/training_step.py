"""Small training steps in ONNX text, and what a pass leaves of them."""

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.manager import run_pass
from tests.support import parse


def step(text, border, **weights):
    """A model whose nodes belong to the backward pass from the one on that makes `border`."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, **weights)))
    behind = False
    for node in model.graph:
        behind |= border in {value.name for value in node.outputs}
        if behind:
            node.metadata_props[ROLE_KEY] = "backward"
    propagate_types(model)
    return model


def outline(model):
    """Operators in order, a Cast as the type it gives; those of the backward pass behind a bar."""
    words, behind = [], False
    for node in model.graph:
        if node.metadata_props.get(ROLE_KEY) and not behind:
            words, behind = [*words, "|"], True
        words.append(node.outputs[0].dtype.name if node.op_type == "Cast" else node.op_type)
    return " ".join(words)


def same_after(pass_, model, run, feeds, count):
    """Run the pass: the outputs stay the same to the bit."""
    before = run(model, feeds)
    result = run_pass(pass_, model)
    assert result.count == count
    assert result.modified == bool(count)
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_array_equal(old, new)
