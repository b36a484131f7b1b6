"""Gradients of Fourier transforms, DFT and STFT: they are linear, so these are products with their matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient

_REAL, _COMPLEX = 1, 2  # sizes of the last axis


@gradient("DFT")
def dft(
    g: Expr,
    x: Expr,
    length: Expr | None = None,
    axis: Expr | None = None,
    *,
    node: NodeGradient,
    onesided: int = 0,
    inverse: int = 0,
) -> Gradients:
    """The product with the transposed matrix of the transform, along its axis."""
    along = int(node.attribute("axis", 1)) if node.opset < 20 else _number(axis, -2, "the axis")
    along %= x.rank
    size, parts = x.size(along), x.size(-1)
    if size is None or parts is None or (inverse and onesided):
        raise NotDifferentiable("the size of its axis is not known, or it is the inverse of a one-sided transform")
    matrix = _matrix(_number(length, size, "its length"), size, onesided=bool(onesided), inverse=bool(inverse))
    matrix = matrix[:, :, :parts].reshape(matrix.shape[0], size * parts)
    others = [i for i in range(x.rank - 1) if i != along]
    to_last = [*others, along, x.rank - 1]
    flat = g.transpose(to_last).reshape([*[0] * len(others), -1]) @ g.constant(matrix, g.dtype)
    back = [to_last.index(i) for i in range(x.rank)]
    return flat.reshape([*[0] * len(others), size, parts]).transpose(back).with_shape_of(x)


@gradient("STFT")
def stft(
    g: Expr,
    signal: Expr,
    step: Expr,
    window: Expr | None = None,
    length: Expr | None = None,
    *,
    onesided: int = 1,
) -> Gradients:
    """A transposed convolution: frames back to the time domain, windowed, and added up where they overlap.

    The gradient of the window is not worked out.
    """
    total, parts = signal.size(1), signal.size(2) if signal.rank == 3 else _REAL
    size = None if window is None else window.size(0)
    size = _number(length, 0, "its length") if size is None else size
    if total is None or not size or parts != _REAL:
        raise NotDifferentiable("the length of its real signal, or of a frame, is not known")
    stride = _number(step, 0, "the step of its frames")
    matrix = _matrix(size, size, onesided=bool(onesided), inverse=False)[:, :, :_REAL]
    kernel = g.constant(matrix.transpose(0, 2, 1), g.dtype)  # bins and parts, one channel, time
    kernel = kernel if window is None else kernel * window.cast(g.dtype)
    frames = g.reshape([0, 0, -1]).transpose([0, 2, 1])
    summed = frames.op("ConvTranspose", kernel, strides=[stride])
    rest = (total - size) % stride  # behind the last frame
    padded = summed.op("Pad", summed.constant(np.array([0, 0, 0, 0, 0, rest]))) if rest else summed
    return padded.reshape([0, -1, _REAL] if signal.rank == 3 else [0, -1]).with_shape_of(signal), None, None


def _number(value: Expr | None, default: int, what: str) -> int:
    """Return an input that is a number.

    Raises:
        NotDifferentiable: it is not known before the program runs.
    """
    if value is None:
        return default
    if value.known is None:
        raise NotDifferentiable(f"{what} is not known before it runs")
    return int(value.known.reshape(-1)[0])


def _matrix(length: int, size: int, *, onesided: bool, inverse: bool) -> npt.NDArray[np.float32]:
    """Return the transform as a matrix [bins * 2, size, 2]: from the parts of the numbers to those of the bins.

    Args:
        length: of the transform; what is beyond it is left out, and what is missing is zero.
        size: of what is transformed.
        onesided: only the bins that a real signal needs.
        inverse: the inverse transform.
    """
    bins = length // 2 + 1 if onesided else length
    angle = (2.0 * np.pi / length) * (np.outer(np.arange(bins), np.arange(size)) % length)
    cos, sin = np.cos(angle), np.sin(angle) * (1.0 if inverse else -1.0)
    matrix = np.empty((bins, 2, size, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = cos, -sin
    matrix[:, 1, :, 0], matrix[:, 1, :, 1] = sin, cos
    matrix[:, :, length:] = 0.0
    return (matrix / (length if inverse else 1.0)).reshape(bins * 2, size, 2).astype(np.float32)
