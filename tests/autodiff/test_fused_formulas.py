"""Gradients of fused operators, most without a kernel for a CPU, against torch's of their documented formulas.

The backward pass computes them again in plain operators, so it runs without the operator itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.verifier import faults
from tests.autodiff.gradient_check import gradient_model

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
functional = torch.nn.functional
HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
RANDOM = np.random.default_rng(17)


def draw(*shape):
    return (RANDOM.normal(size=shape) * 0.7).astype("f")


def channels_first(x):
    return x.movedim(-1, 1)


def group_norm(x, gamma, beta, groups=2, epsilon=1e-5, swish=False):
    """By groups of the last axis."""
    y = functional.group_norm(channels_first(x), groups, gamma, beta, epsilon).movedim(1, -1)
    return y * y.sigmoid() if swish else y


def tanh_gelu(x):
    return functional.gelu(x, approximate="tanh")


def split_gelu(x, bias):
    first, second = (x + bias).chunk(2, -1)
    return first * functional.gelu(second)


def flat_softmax(x):
    return functional.softmax(x.flatten(1), -1).reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class Case:
    """A call, its float inputs, its formula in torch, and what else is known."""

    call: str
    shapes: Mapping[str, tuple[int, ...]]
    formula: Callable[..., Any]
    domain: str = "com.microsoft."
    constants: str = ""


NORM = {"x": (2, 3, 3, 4), "g": (4,), "b": (4,)}
CASES = {
    "SimplifiedLayerNormalization": Case(
        "SimplifiedLayerNormalization<axis = -1, epsilon = 0.001>(x, g)",
        {"x": (2, 3, 8), "g": (8,)},
        lambda x, g: x / (x.square().mean(-1, keepdim=True) + 0.001).sqrt() * g,
        domain="",
    ),
    "GroupNorm": Case("GroupNorm<groups = 2, activation = 0>(x, g, b)", NORM, group_norm),
    "GroupNorm with a swish": Case(
        "GroupNorm<groups = 2, activation = 1, epsilon = 0.01>(x, g, b)",
        NORM,
        lambda x, g, b: group_norm(x, g, b, epsilon=0.01, swish=True),
    ),
    "GroupNorm, channels first": Case(
        "GroupNorm<groups = 2, activation = 0, channels_last = 0>(x, g, b)",
        {"x": (2, 4, 3, 3), "g": (4,), "b": (4,)},
        lambda x, g, b: functional.group_norm(x, 2, g, b),
    ),
    "SkipGroupNorm": Case(
        "SkipGroupNorm<groups = 2, activation = 1>(x, g, b, s, c)",
        NORM | {"s": (2, 3, 3, 4), "c": (4,)},
        lambda x, g, b, s, c: group_norm(x + s + c, g, b, swish=True),
    ),
    "SkipGroupNorm, a skip of one number a channel": Case(
        "SkipGroupNorm<groups = 2, activation = 0>(x, g, b, s)",
        NORM | {"s": (2, 1, 1, 4)},
        lambda x, g, b, s: group_norm(x + s, g, b),
    ),
    "BiasAdd": Case("BiasAdd(x, b, s)", {"x": (2, 3, 4), "b": (4,), "s": (2, 3, 4)}, lambda x, b, s: x + b + s),
    "BiasSoftmax": Case(
        "BiasSoftmax<axis = 3, is_inner_broadcast = 1>(x, b)",
        {"x": (2, 3, 4, 5), "b": (2, 1, 1, 5)},
        lambda x, b: functional.softmax(x + b, -1),
    ),
    "BiasSoftmax, a bias for all rows": Case(
        "BiasSoftmax<axis = -1, is_inner_broadcast = 0>(x, b)",
        {"x": (2, 3, 4, 5), "b": (4, 5)},
        lambda x, b: functional.softmax(x + b, -1),
    ),
    "BiasSoftmax over several axes": Case(
        "BiasSoftmax<axis = 1, is_inner_broadcast = 0>(x, b)",
        {"x": (2, 3, 4), "b": (1, 3, 4)},
        lambda x, b: flat_softmax(x + b),
    ),
    "BiasSplitGelu": Case("BiasSplitGelu(x, b)", {"x": (2, 3, 8), "b": (8,)}, split_gelu),
    "GemmFastGelu": Case(
        "GemmFastGelu(x, w, b)",
        {"x": (2, 3, 4), "w": (4, 5), "b": (5,)},
        lambda x, w, b: tanh_gelu(x @ w + b),
    ),
    "GemmFastGelu without a bias": Case(
        "GemmFastGelu(x, w)", {"x": (3, 4), "w": (4, 5)}, lambda x, w: tanh_gelu(x @ w)
    ),
    "ExpandDims": Case("ExpandDims(x, axis)", {"x": (2, 3)}, lambda x: x.unsqueeze(1), constants="int32 axis = {1}"),
    "NhwcFusedConv": Case(
        'NhwcFusedConv<activation = "Relu", pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, b)',
        {"x": (2, 5, 5, 3), "w": (4, 3, 3, 3), "b": (4,)},
        lambda x, w, b: functional.conv2d(channels_first(x), w, b, 2, 1).relu().movedim(1, -1),
    ),
    "NhwcFusedConv with a sum": Case(
        'NhwcFusedConv<activation = "LeakyRelu", activation_params = [0.2]>(x, w, b, z)',
        {"x": (2, 4, 4, 2), "w": (3, 2, 3, 3), "b": (3,), "z": (2, 2, 2, 3)},
        lambda x, w, b, z: functional.leaky_relu(functional.conv2d(channels_first(x), w, b).movedim(1, -1) + z, 0.2),
    ),
}


def text_of(case, shape, element="float"):
    inputs = ", ".join(f"{element}[{','.join(map(str, sizes))}] {name}" for name, sizes in case.shapes.items())
    declared = f"<{element}[{','.join(map(str, shape))}] h{', ' * bool(case.constants)}{case.constants}>"
    return f"{HEAD} g ({inputs}) => ({element}[] y) {declared} {{ h = {case.domain}{case.call} y = Identity(h) }}"


def backward_alone(model):
    """The gradients of a model, without what they do not need."""
    backward, names = gradient_model(model, is_standard=False)
    work = ir.from_proto(backward)
    work.graph.outputs[:] = [value for value in work.graph.outputs if value.name.startswith("grad_")]
    RemoveUnusedNodesPass()(work)
    return ir.to_proto(work), names


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    case = CASES[name]
    feeds = {key: draw(*shape) for key, shape in case.shapes.items()}
    wide = {key: torch.from_numpy(value).double().requires_grad_() for key, value in feeds.items()}
    result = case.formula(*wide.values())
    seed = draw(*result.shape)
    result.backward(torch.from_numpy(seed).double())
    backward, names = backward_alone(onnx.parser.parse_model(text_of(case, result.shape)))
    assert set(names) == set(feeds)
    session = onnxruntime.InferenceSession(backward.SerializeToString(), providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    fed = {key: value for key, value in (feeds | {"y__seed": seed}).items() if key in known}
    for key, got in zip(names, session.run([f"grad_{key}" for key in names], fed), strict=True):
        want = wide[key].grad.numpy()
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5 * max(1.0, np.abs(want).max()), err_msg=key)


@pytest.mark.parametrize("name", ["GroupNorm with a swish", "BiasSoftmax", "GemmFastGelu", "NhwcFusedConv"])
def test_low_gradients_have_the_type_of_their_input(name):
    case = CASES[name]
    shape = case.formula(*map(torch.zeros, case.shapes.values())).shape
    backward, names = gradient_model(onnx.parser.parse_model(text_of(case, shape, "float16")))
    assert not list(faults(ir.from_proto(backward)))
    types = {v.name: v.type.tensor_type.elem_type for v in [*backward.graph.input, *backward.graph.output]}
    assert all(types[f"grad_{key}"] == types[key] for key in names)


def test_a_bias_in_the_middle_is_refused():
    case = Case("BiasSoftmax<axis = 2, is_inner_broadcast = 1>(x, b)", {"x": (2, 3, 4), "b": (2, 4)}, torch.add)
    with pytest.raises(ModelError, match="BiasSoftmax"):
        gradient_model(onnx.parser.parse_model(text_of(case, (2, 3, 4))))
