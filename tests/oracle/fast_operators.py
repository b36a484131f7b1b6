"""Operators that ONNX's reference evaluator computes slowly, in numpy: by matrix products and strided views.

Each class replaces the evaluator's operator of its name, and leaves to it what it does not know (indices of a pooling).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_max_pool import MaxPool as SlowMaxPool
from scipy import special

Slices = tuple[slice, ...]
_CACHED = 1 << 18  # float32 numbers that a core's cache holds


def _pads(
    auto_pad: str | None, pads: Sequence[int] | None, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding before and after each spatial axis; `spans` are the extents of the dilated kernel."""
    count = len(sizes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(sizes, strides, spans, strict=True)]
        halves = [(total // 2, total - total // 2) for total in totals]
        return halves if auto_pad == "SAME_UPPER" else [(after, before) for before, after in halves]
    if auto_pad == "VALID" or pads is None:
        return [(0, 0)] * count
    return [(pads[i], pads[i + count]) for i in range(count)]


def _windows(
    kernel: Sequence[int], outs: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Slices]]:
    """Yield each position in the kernel with the slices of the padded input that it meets."""
    for position in itertools.product(*map(range, kernel)):
        starts = [p * d for p, d in zip(position, dilations, strict=True)]
        yield position, tuple(slice(b, b + s * (n - 1) + 1, s) for b, s, n in zip(starts, strides, outs, strict=True))


def _multiply(
    weights: np.ndarray, image: np.ndarray, windows: list[tuple[tuple[int, ...], Slices]], into: np.ndarray
) -> None:
    """Convolve an image [channels, ...] into `into` [outputs, ...], as many rows at a time as the cache holds."""
    channels, (rows, *rest) = image.shape[0], into.shape[1:]
    width = math.prod(rest)
    step = max(1, _CACHED // (channels * len(windows) * max(1, width)))
    buffer = np.empty((channels, len(windows), min(step, rows), *rest), image.dtype)
    for start in range(0, rows, step):
        columns = buffer[:, :, : min(step, rows - start)]
        for index, (_, there) in enumerate(windows):
            columns[:, index] = image[(..., *there)][:, start : start + step]
        product = weights @ columns.reshape(channels * len(windows), -1)
        into[:, start : start + step] = product.reshape(-1, columns.shape[2], *rest)


class Conv(OpRun):
    def _run(
        self,
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        kernel, axes, groups = kernel_shape or w.shape[2:], x.ndim - 2, group or 1
        strides, dilations = list(strides or [1] * axes), list(dilations or [1] * axes)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        padding = _pads(auto_pad, pads, x.shape[2:], spans, strides)
        padded = np.pad(x, [(0, 0), (0, 0), *padding]) if any(map(any, padding)) else x
        outs = [(n - k) // s + 1 for n, k, s in zip(padded.shape[2:], spans, strides, strict=True)]
        batch, channels = x.shape[0], x.shape[1] // groups
        if channels == 1 and w.shape[0] == groups:
            result = np.zeros((batch, groups, *outs), x.dtype)
            for position, there in _windows(kernel, outs, strides, dilations):
                result += padded[(..., *there)] * w[(slice(None), 0, *position)].reshape(-1, *[1] * axes)
        else:
            grouped = padded.reshape(batch * groups, channels, *padded.shape[2:])
            weights = w.reshape(groups, w.shape[0] // groups, -1)
            result = np.empty((batch * groups, weights.shape[1], *outs), np.result_type(x, w))
            windows = list(_windows(kernel, outs, strides, dilations))
            for index, (image, into) in enumerate(zip(grouped, result, strict=True)):
                _multiply(weights[index % groups], image, windows, into)
            result = result.reshape(batch, w.shape[0], *outs)
        return (result if bias is None else result + bias.reshape(-1, *[1] * axes),)


class ConvTranspose(OpRun):
    def _run(
        self,
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        kernel, axes, groups = kernel_shape or w.shape[2:], x.ndim - 2, group or 1
        strides, dilations = list(strides or [1] * axes), list(dilations or [1] * axes)
        extra = list(output_padding or [0] * axes)
        sizes = x.shape[2:]
        full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER") and output_shape is None:
            output_shape = [n * s for n, s in zip(sizes, strides, strict=True)]
        if output_shape is not None:
            totals = [max(0, f + e - o) for f, e, o in zip(full, extra, output_shape[-axes:], strict=True)]
            padding = [(t // 2, t - t // 2) if auto_pad == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
            outs = list(output_shape[-axes:])
        else:
            padding = _pads(auto_pad, pads, sizes, kernel, strides)
            outs = [f + e - sum(p) for f, e, p in zip(full, extra, padding, strict=True)]
        batch, channels, wide = x.shape[0], x.shape[1] // groups, w.shape[1]
        room = [max(f, o + p[0]) for f, o, p in zip(full, outs, padding, strict=True)]
        spread = np.zeros((batch, groups * wide, *room), x.dtype)
        data = x.reshape(batch, groups, channels, -1)
        weights = w.reshape(groups, channels, wide, *kernel)
        for position, there in _windows(kernel, sizes, strides, dilations):
            part = weights[(..., *position)].transpose(0, 2, 1)
            spread[(..., *there)] += np.matmul(part, data).reshape(batch, groups * wide, *sizes)
        cut = spread[(..., *(slice(p[0], p[0] + o) for p, o in zip(padding, outs, strict=True)))]
        return (cut if bias is None else cut + bias.reshape(-1, *[1] * axes),)


class MaxPool(SlowMaxPool):
    def _run(self, x: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
        kernel = options["kernel_shape"]
        strides, dilations = options.get("strides") or [1] * len(kernel), options.get("dilations") or [1] * len(kernel)
        if len(self.onnx_node.output) > 1 or options.get("ceil_mode") or x.dtype.kind != "f":
            return super()._run(x, **options)  # type: ignore[no-any-return]  # ONNX's classes have no types
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        padding = _pads(options.get("auto_pad"), options.get("pads"), x.shape[2:], spans, strides)
        padded = np.pad(x, [(0, 0), (0, 0), *padding], constant_values=-np.inf)
        outs = [(n - k) // s + 1 for n, k, s in zip(padded.shape[2:], spans, strides, strict=True)]
        result = np.full((*x.shape[:2], *outs), -np.inf, x.dtype)
        for _, there in _windows(kernel, outs, strides, dilations):
            np.maximum(result, padded[(..., *there)], out=result)
        return (result,)


class Erf(OpRun):
    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (special.erf(x),)


class AveragePool(OpRun):
    def _run(
        self,
        x: np.ndarray,
        *,
        kernel_shape: Sequence[int],
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        axes = len(kernel_shape)
        strides, dilations = list(strides or [1] * axes), list(dilations or [1] * axes)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
        padding = _pads(auto_pad, pads, x.shape[2:], spans, strides)
        room = [n + b + a - k for n, (b, a), k in zip(x.shape[2:], padding, spans, strict=True)]
        outs = [(-(-r // s) if ceil_mode else r // s) + 1 for r, s in zip(room, strides, strict=True)]
        if ceil_mode:  # a window that starts in the padding behind the input is none
            sizes = zip(outs, strides, x.shape[2:], padding, strict=True)
            outs = [o - ((o - 1) * s >= n + b) for o, s, n, (b, _) in sizes]
        beyond = [max(0, (o - 1) * s - r) for o, s, r in zip(outs, strides, room, strict=True)]
        tails = [(0, 0), (0, 0), *((0, more) for more in beyond)]
        widths = [(0, 0), (0, 0), *padding]
        data = np.pad(np.pad(x, widths), tails)
        ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
        counted = np.pad(np.pad(ones, widths, constant_values=1 if count_include_pad else 0), tails)
        windows = [there for _, there in _windows(kernel_shape, outs, strides, dilations)]
        return (sum(data[(..., *there)] for there in windows) / sum(counted[(..., *there)] for there in windows),)


class DequantizeLinear(OpRun):
    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        zero: np.ndarray | None = None,
        axis: int = 1,
        block_size: int = 0,
        **_options: Any,
    ) -> tuple[np.ndarray]:
        def spread(array: np.ndarray) -> np.ndarray:
            array = array.astype(np.float32)
            if block_size:
                return np.repeat(array, block_size, axis)[tuple(slice(0, n) for n in x.shape)]
            return array.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]) if array.size > 1 else array

        offset = np.float32(0) if zero is None else spread(zero)
        return ((x.astype(np.float32) - offset) * spread(scale),)


class GatherElements(OpRun):
    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        axis %= data.ndim
        indices = np.where(indices < 0, indices + data.shape[axis], indices)
        rest = tuple(slice(None) if d == axis else slice(0, n) for d, n in enumerate(indices.shape))
        return (np.take_along_axis(data[rest], indices, axis),)


class Pad(OpRun):
    """Negative pads cut, which the evaluator does not know."""

    def _run(
        self,
        data: np.ndarray,
        *inputs: Any,
        pads: Sequence[int] | None = None,
        paddings: Sequence[int] | None = None,
        value: float | None = None,
        mode: str | None = None,
    ) -> tuple[np.ndarray]:
        filled, filler, axes = [*inputs, *[None] * (3 - len(inputs))]  # opsets before 11 have attributes in their place
        amounts = np.asarray(next(p for p in (filled, pads, paddings) if p is not None)).tolist()
        filler = np.asarray(value or 0 if filler is None else filler).reshape(-1)[0]
        where = range(data.ndim) if axes is None else np.asarray(axes).tolist()
        both = [(0, 0)] * data.ndim
        for index, axis in enumerate(where):
            both[axis] = (amounts[index], amounts[index + len(where)])
        cut = (slice(max(0, -b), n - max(0, -a)) for (b, a), n in zip(both, data.shape, strict=True))
        data, widths = data[tuple(cut)], [(max(0, b), max(0, a)) for b, a in both]
        options = {"constant_values": filler} if mode in (None, "constant") else {}
        return (np.pad(data, widths, mode or "constant", **options),)  # type: ignore[call-overload]  # modes are strings


class STFT(OpRun):
    def _run(
        self,
        signal: np.ndarray,
        step: np.ndarray,
        window: np.ndarray | None = None,
        frame_length: np.ndarray | None = None,
        onesided: int = 1,
    ) -> tuple[np.ndarray]:
        if signal.ndim == 3:
            signal = signal[..., 0] if signal.shape[2] == 1 else signal[..., 0] + 1j * signal[..., 1]
        size = int(frame_length) if frame_length is not None else signal.shape[1] if window is None else len(window)
        frames = np.lib.stride_tricks.sliding_window_view(signal, size, 1)[:, :: int(step)]
        spectrum = np.fft.fft(frames if window is None else frames * window)
        spectrum = spectrum[..., : size // 2 + 1] if onesided else spectrum
        return (np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32),)


class GlobalMaxPool(OpRun):
    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class BatchNormalization(OpRun):
    """By the statistics that are given; ONNX's own takes those of the batch at opset 9 to 13, too, as if it trained."""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        **options: Any,
    ) -> tuple[np.ndarray, ...]:
        training = bool(options.get("training_mode"))
        if options.get("spatial") == 0 or (len(self.onnx_node.output) > 1 and not training):
            raise NotImplementedError(f"{self.onnx_node.name}: BatchNormalization of an old form")
        momentum, epsilon = options.get("momentum"), options.get("epsilon")
        running: tuple[np.ndarray, ...] = ()
        if training:
            axes, share = (0, *range(2, x.ndim)), 0.9 if momentum is None else momentum
            spectrum = x.mean(axes), x.var(axes)
            running = tuple(
                old * share + new * (1 - share) for old, new in zip((mean, variance), spectrum, strict=True)
            )
            mean, variance = spectrum
        by = (-1, *[1] * (x.ndim - 2))
        steps = 1e-5 if epsilon is None else epsilon
        y = (x - mean.reshape(by)) / np.sqrt(variance.reshape(by) + steps) * scale.reshape(by) + bias.reshape(by)
        return (y.astype(x.dtype), *(spectrum.astype(mean.dtype) for spectrum in running))[: len(self.onnx_node.output)]


class Scatter(OpRun):
    """The older name of ScatterElements."""

    def _run(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        result = data.copy()
        np.put_along_axis(result, indices, updates, axis)
        return (result,)


FAST = [
    AveragePool,
    BatchNormalization,
    Conv,
    ConvTranspose,
    DequantizeLinear,
    Erf,
    GatherElements,
    GlobalMaxPool,
    MaxPool,
    Pad,
    Scatter,
    STFT,
]
