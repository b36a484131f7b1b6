"""Gradients of Resize and Upsample: the transposed interpolation matrices, one per axis that changes."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.interpolation import AxisResize, resize_matrix
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import apply_transposed, in_shape_of


@gradient("Resize", "Upsample")
def resize(n: NodeGradient) -> ir.Value:
    """`g` times the transposed matrices; axes that stay as they are may be symbolic."""
    g = n.g
    for axis, change in reversed(list(_changes(n).items())):
        g = apply_transposed(n.b, g, axis, resize_matrix(change))
    return in_shape_of(g, n.x)


def _changes(n: NodeGradient) -> dict[int, AxisResize]:
    """The axes that are resized, in order, and how.

    Axes of scale 1 are not, even if a region is cropped from them: ONNX Runtime copies them. Where sizes are given for
    all axes they name the batch as well; a symbolic one is taken to stay as it is.
    """
    before, after = _dimensions(n, n.x), _dimensions(n, n.y)
    axes = [axis % len(before) for axis in n.attribute("axes") or range(len(before))]
    crop = n.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = [float(bound) for bound in n.constant(1)] if crop else [0.0] * len(axes) + [1.0] * len(axes)
    scales = _scales(n, axes)
    found = {}
    for i, axis in enumerate(axes):
        size, out = before[axis], after[axis]
        stays = (size is not None and size == out) or (axis == 0 and not isinstance(size, int))
        if scales[i] == 1.0 if scales else stays:
            continue
        if not isinstance(size, int) or not isinstance(out, int):
            raise n.error(f"axis {axis} is resized, so its sizes must be known numbers, got {size} and {out}")
        found[axis] = _axis(n, size, out, scales[i] if scales else out / size, (roi[i], roi[len(axes) + i]))
    return dict(sorted(found.items()))


def _dimensions(n: NodeGradient, value: ir.Value) -> list[int | str | None]:
    """The sizes of the axes: numbers, names, None where nothing is known."""
    if value.shape is None:
        raise n.error(f"the rank of '{value.name}' must be known: run shape inference")
    return [size if isinstance(size, int) else size.value for size in value.shape]


def _scales(n: NodeGradient, axes: list[int]) -> list[float] | None:
    """The scale of each axis, or None if they follow from the sizes."""
    if n.b.opset < 9 or n.attribute("scales") is not None:  # Upsample-7
        return [float(scale) for scale in n.attribute("scales")]
    given = n.constant(1 if n.node.op_type == "Upsample" or n.b.opset < 11 else 2)
    if given is not None and given.size:
        return [float(scale) for scale in given]
    policy = n.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return None
    ratios = []
    for wanted, axis in zip(n.constant(3), axes, strict=True):
        size = _dimensions(n, n.x)[axis]
        if not isinstance(size, int):
            raise n.error(f"keep_aspect_ratio_policy='{policy}' needs the size of axis {axis} to be known, got {size}")
        ratios.append(int(wanted) / size)
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _axis(n: NodeGradient, size: int, out: int, scale: float, roi: tuple[float, float]) -> AxisResize:
    old = n.node.op_type == "Upsample" or n.b.opset < 11
    mode = n.attribute("mode", "nearest")
    return AxisResize(
        size=size,
        out=out,
        scale=scale,
        mode="linear" if mode == "bilinear" else mode,
        coordinates="asymmetric" if old else n.attribute("coordinate_transformation_mode", "half_pixel"),
        nearest="simple" if old else n.attribute("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=n.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(n.attribute("exclude_outside", 0)),
        antialias=bool(n.attribute("antialias", 0)),
        roi=roi,
    )
