"""Gradients of Resize and Upsample: the transposed interpolation matrices, one per axis that changes."""

from __future__ import annotations

from typing import TypeAlias

from amp_transpiler.autodiff.context import NodeGradient, SizesUnknown
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.interpolation import AxisResize, resize_matrix
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import apply_transposed


@gradient("Resize", "Upsample")
def resize(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    """`g` times the transposed matrices; axes that keep their size may be symbolic."""
    for axis, change in reversed(list(_changes(node, _dimensions(x), _dimensions(y)).items())):
        g = apply_transposed(g, axis, resize_matrix(change))
    return g.with_shape_of(x)


_Dimensions: TypeAlias = "list[int | str | None]"


def _changes(node: NodeGradient, before: _Dimensions, after: _Dimensions) -> dict[int, AxisResize]:
    """The axes that are resized, in order, and how.

    Axes of scale 1 are not resized, even if a region is cropped from them: ONNX Runtime copies them. Sizes given for
    all axes include the batch; a symbolic batch is assumed to keep its size.
    """
    axes = [axis % len(before) for axis in node.attribute("axes") or range(len(before))]
    crop = node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = [float(bound) for bound in node.constant(1)] if crop else [0.0] * len(axes) + [1.0] * len(axes)
    scales = _scales(node, axes, before)
    changes = {}
    for i, axis in enumerate(axes):
        size, out = before[axis], after[axis]
        stays = (size is not None and size == out) or (axis == 0 and not isinstance(size, int))
        if scales[i] == 1.0 if scales else stays:
            continue
        if not isinstance(size, int) or not isinstance(out, int):
            raise SizesUnknown(f"axis {axis} is resized, so its sizes must be known numbers, got {size} and {out}")
        changes[axis] = _axis(node, size, out, scales[i] if scales else out / size, (roi[i], roi[len(axes) + i]))
    return dict(sorted(changes.items()))


def _dimensions(x: Expr) -> _Dimensions:
    """The sizes of the axes: numbers, names, None where nothing is known."""
    if x.shape is None:
        raise SizesUnknown(f"the rank of '{x.name}' must be known: run shape inference")
    return [size if isinstance(size, int) else size.value for size in x.shape]


def _scales(node: NodeGradient, axes: list[int], before: _Dimensions) -> list[float] | None:
    """The scale of each axis, or None if they follow from the sizes."""
    if node.opset < 9 or node.attribute("scales") is not None:  # Upsample-7
        return [float(scale) for scale in node.attribute("scales")]
    index = 1 if node.op_type == "Upsample" or node.opset < 11 else 2
    if node.optional(index) is not None and node.constant(index).size:  # an empty tensor is also "left out"
        return [float(scale) for scale in node.constant(index)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return None
    ratios = []
    for wanted, axis in zip(node.constant(3), axes, strict=True):
        size = before[axis]
        if not isinstance(size, int):
            raise SizesUnknown(
                f"keep_aspect_ratio_policy='{policy}' needs the size of axis {axis} to be known, got {size}"
            )
        ratios.append(int(wanted) / size)
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _axis(node: NodeGradient, size: int, out: int, scale: float, roi: tuple[float, float]) -> AxisResize:
    old = node.op_type == "Upsample" or node.opset < 11
    mode = node.attribute("mode", "nearest")
    return AxisResize(
        size=size,
        out=out,
        scale=scale,
        mode="linear" if mode == "bilinear" else mode,
        coordinates="asymmetric" if old else node.attribute("coordinate_transformation_mode", "half_pixel"),
        nearest="simple" if old else node.attribute("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=node.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attribute("exclude_outside", 0)),
        antialias=bool(node.attribute("antialias", 0)),
        roi=roi,
    )
