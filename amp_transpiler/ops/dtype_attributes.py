"""Operators whose output type is set by an attribute, not by an input."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["DTYPE_ATTRIBUTES", "DtypeAttribute", "attribute_dtype", "dtype_attribute", "tensor_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class DtypeAttribute:
    """An attribute that sets the element type of outputs.

    Attributes:
        attribute: its name.
        outputs: the outputs whose type it sets.
        default: the type if the attribute is absent: an element type, or the index of an input of the same type.
        holds_tensor: the attribute is a tensor and its element type counts; otherwise it is the number of a type.
    """

    attribute: str
    outputs: tuple[int, ...] = (0,)
    default: ir.DataType | int = ir.DataType.FLOAT
    holds_tensor: bool = False


# From the operators' descriptions in ONNX's own documentation.
DTYPE_ATTRIBUTES: dict[str, DtypeAttribute] = {
    "Cast": DtypeAttribute("to"),
    "BitCast": DtypeAttribute("to"),
    "ConstantOfShape": DtypeAttribute("value", holds_tensor=True),
    "EyeLike": DtypeAttribute("dtype", default=0),
    "RandomNormal": DtypeAttribute("dtype"),
    "RandomUniform": DtypeAttribute("dtype"),
    "RandomNormalLike": DtypeAttribute("dtype", default=0),
    "RandomUniformLike": DtypeAttribute("dtype", default=0),
    "Bernoulli": DtypeAttribute("dtype", default=0),
    "Multinomial": DtypeAttribute("dtype", default=ir.DataType.INT32),
    "HannWindow": DtypeAttribute("output_datatype"),
    "HammingWindow": DtypeAttribute("output_datatype"),
    "BlackmanWindow": DtypeAttribute("output_datatype"),
    "MelWeightMatrix": DtypeAttribute("output_datatype"),
    "LayerNormalization": DtypeAttribute("stash_type", outputs=(1, 2)),
    "DequantizeLinear": DtypeAttribute("output_dtype", default=1),
}


def dtype_attribute(node: ir.Node) -> DtypeAttribute | None:
    """Return the attribute that sets output types of `node`, or None if only its inputs set them."""
    return DTYPE_ATTRIBUTES.get(node.op_type) if is_standard(node) else None


def attribute_dtype(node: ir.Node, rule: DtypeAttribute) -> ir.DataType | None:
    """Return the element type that `rule` gives the outputs of `node`; None if that of an untyped input."""
    attribute = node.attributes.get(rule.attribute)
    if attribute is not None and not attribute.is_ref():
        if rule.holds_tensor:
            return tensor_of(attribute).dtype
        number = attribute.as_int()
        if number:  # 0 in DequantizeLinear means the type of the scale
            return ir.DataType(number)
    if isinstance(rule.default, ir.DataType):
        return rule.default
    source = node.inputs[rule.default] if rule.default < len(node.inputs) else None
    return None if source is None else source.dtype


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return the tensor that an attribute holds.

    `Attr.as_tensor` does the same, but looks for every method of a tensor first, which takes 30 us.

    Raises:
        TypeError: the attribute is of another type, or a reference.
    """
    if attribute.type is ir.AttributeType.TENSOR and attribute.value is not None:
        tensor: ir.TensorProtocol = attribute.value
        return tensor
    return attribute.as_tensor()
