"""Convolutions with a gradient by their weight or data, as the rule of autodiff writes it."""

import onnx
import onnx_ir as ir

from amp_transpiler.autodiff.driver import differentiate
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from tests.support import array, parse


def trained(x, w, attributes="", op_type="Conv", dtype="float", wanted="w", opset=22):
    """A convolution and one of its gradients; `x` and `w` are shapes."""
    shapes = [",".join(map(str, shape)) for shape in (x, w)]
    text = (
        f"({dtype}[{shapes[0]}] x, {dtype}[{shapes[1]}] w) => ({dtype}[{','.join('abcde'[: len(x)])}] y)"
        f" {{ y = {op_type} {attributes} (x, w) }}"
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=opset)))
    propagate_types(model)
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    seed = ir.Value(name="g", type=values["y"].type, shape=values["y"].shape)
    model.graph.inputs.append(seed)
    cotangents = differentiate(GraphBuilder(model), {values["y"]: seed}, [values[wanted]])
    model.graph.outputs[:] = [cotangents[values[wanted]]]
    return model


def feeds_of(model):
    shapes = {value.name: [d if isinstance(d, int) else 2 for d in value.shape] for value in model.graph.inputs}
    return {name: array(*shape, seed=len(name)) for name, shape in shapes.items()}


# name: (shape of x, shape of w, attributes)
LAYERS = {
    "3x3": ((2, 4, 7, 6), (5, 4, 3, 3), "<pads = [1, 1, 1, 1]>"),
    "strides that leave elements": ((2, 3, 8, 9), (4, 3, 3, 2), "<strides = [3, 2]>"),
    "dilations": ((2, 3, 9, 9), (4, 3, 3, 3), "<dilations = [2, 1], pads = [2, 1, 2, 1]>"),
    "asymmetric padding": ((2, 3, 6, 6), (4, 3, 3, 3), "<pads = [0, 1, 2, 0], strides = [2, 1]>"),
    "same padding": ((2, 3, 7, 7), (4, 3, 2, 2), '<auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    "one axis": ((2, 3, 9), (4, 3, 4), "<pads = [2, 1]>"),
    "three axes": ((2, 3, 4, 5, 4), (2, 3, 2, 3, 2), "<strides = [1, 2, 1]>"),
    "one sample": ((1, 3, 5, 5), (4, 3, 3, 3), ""),
    "an open batch": (("N", 3, 5, 5), (4, 3, 3, 3), ""),
    "a padded 1x1 kernel": ((2, 3, 4, 4), (4, 3, 1, 1), "<pads = [1, 0, 0, 1]>"),
}
