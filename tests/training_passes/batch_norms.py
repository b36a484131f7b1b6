"""A BatchNormalization in training, forward and backward, with numbers for it and what they give in float64."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.autodiff.driver import differentiate
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from tests.support import array, parse

TYPES = {"float": 1, "float16": 10, "double": 11, "bfloat16": 16}
NUMPY = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def trained(shape, dtype="float", stats="float", between="", epsilon=1e-5, opset=21):
    """A BatchNormalization, forward and backward, with the seed `g` as an input."""
    declared, c = ",".join(map(str, shape)), f"{stats}[{shape[1]}]"
    wide = "double" if dtype == "double" else "float"  # bfloat16 cannot be fed by numpy
    low, high = TYPES[dtype], TYPES[wide]
    text = (
        f"({wide}[{declared}] x_in, {wide}[{declared}] g_in, {c} scale, {c} bias, {c} mean, {c} var)"
        f" => ({wide}[{declared}] y_out, {c} mean_out, {c} var_out) {{"
        f" x = Cast <to = {low}> (x_in) g = Cast <to = {low}> (g_in) [bn] y, mean_out, var_out ="
        f" BatchNormalization <training_mode = 1, epsilon = {epsilon}> (x, scale, bias, mean, var)"
        f" y_out = Cast <to = {high}> (y) }}"
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=opset)))
    propagate_types(model)
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs)}
    wanted = [values[name] for name in ("x", "scale", "bias")]
    cotangents = differentiate(GraphBuilder(model), {values["y"]: values["g"]}, wanted)
    for value in wanted:
        if between:  # something reads into the gradient: it is written by a rewriting of another kind
            inner = next(node for node in model.graph if node.op_type == between and node.metadata_props)
            model.graph.outputs.append(inner.outputs[0])
            between = ""
        cotangent = cotangents[value]
        model.graph.outputs.append(GraphBuilder(model).cast(cotangent, values["y_out"].dtype))
    return model


def numbers(shape, dtype, *, offset=1.5, spread=2.0):
    c = shape[1]
    return {
        "x_in": (array(*shape) * spread + offset).astype(NUMPY[dtype]).astype(np.float32),
        "g_in": (array(*shape, seed=7) * 1e-3).astype(NUMPY[dtype]).astype(np.float32),
        "scale": array(c, seed=1),
        "bias": array(c, seed=2),
        "mean": array(c, seed=3),
        "var": np.abs(array(c, seed=4)),
    }


def expected(feeds, epsilon=1e-5):
    """Everything in float64, from the rounded inputs."""
    x, g, scale, bias, old_mean, old_var = (np.asarray(feeds[name], np.float64) for name in feeds)
    axes = (0, *range(2, x.ndim))
    column = lambda vector: vector.reshape(-1, *[1] * (x.ndim - 2))  # noqa: E731  # shorter than a def
    mean, var = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(var + epsilon)
    normal = (x - column(mean)) * column(inverse)
    to_scale, to_bias = (g * normal).sum(axes), g.sum(axes)
    count = x.size // x.shape[1]
    dx = column(scale * inverse) * (g - (normal * column(to_scale) + column(to_bias)) / count)
    y = normal * column(scale) + column(bias)
    return y, old_mean * 0.9 + mean * 0.1, old_var * 0.9 + var * 0.1, dx, to_scale, to_bias
