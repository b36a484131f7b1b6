"""Makes images and sounds from random numbers, with the statistics of real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["drawing", "picture", "sound"]

_SAMPLE_RATE = 16000.0
_PITCH = 150.0  # Hz, of a voice
_HARMONICS = 12
_SHARED = 0.8  # part of an image that is the same in all its channels


def picture(shape: tuple[int, ...], rng: np.random.Generator, *, channels_last: bool = False) -> np.ndarray:
    """Return smooth noise between 0 and 1 whose spectrum falls with frequency, as in photographs.

    Args:
        shape: four dimensions: images, channels, rows, columns.
        rng: the random numbers.
        channels_last: the channels come last in `shape` and result.
    """
    if channels_last:
        return _with_channels_last(picture, shape, rng)
    n, c, h, w = shape
    frequency = np.hypot(np.fft.fftfreq(h)[:, None], np.fft.rfftfreq(w)[None, :])
    amplitude = 1.0 / np.maximum(frequency, 1.0 / max(h, w, 1))
    amplitude[0, 0] = 0.0  # the mean is set below
    separate = np.fft.rfft2(rng.standard_normal((n, c, h, w)))
    common = np.fft.rfft2(rng.standard_normal((n, 1, h, w)))
    noise = np.fft.irfft2((_SHARED * common + (1.0 - _SHARED) * separate) * amplitude, s=(h, w))
    spread = noise.std(axis=(2, 3), keepdims=True)
    pixels: np.ndarray = np.clip(0.5 + 0.2 * noise / np.where(spread > 0.0, spread, 1.0), 0.0, 1.0)
    return pixels


def drawing(shape: tuple[int, ...], rng: np.random.Generator, *, channels_last: bool = False) -> np.ndarray:
    """Return dark strokes on a light page, between 0 and 1, for models that detect text or objects.

    Args:
        shape: four dimensions: images, channels, rows, columns.
        rng: the random numbers.
        channels_last: the channels come last in `shape` and result.
    """
    if channels_last:
        return _with_channels_last(drawing, shape, rng)
    height, width = shape[2:]
    page = np.full((height, width), 0.95)
    size = max(4, min(height, width) // 8)  # of a character; a stroke is a fifth as thick
    for top in range(size // 2, height - size, 2 * size):
        for left in range(size // 2, width - size, size + size // 4):
            for _ in range(3):
                at, thick = int(rng.integers(0, size)), max(1, size // 5)
                if rng.random() < 0.5:
                    page[top + at : top + at + thick, left : left + size] = 0.1
                else:
                    page[top : top + size, left + at : left + at + thick] = 0.1
    return np.broadcast_to(page, shape).copy()


def _with_channels_last(
    make: Callable[[tuple[int, ...], np.random.Generator], np.ndarray], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    n, h, w, c = shape
    return np.moveaxis(make((n, c, h, w), rng), 1, 3)


def sound(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return a soft voice-like tone with a little noise, along the last axis, at 16 kHz; magnitudes stay below 1."""
    seconds = np.arange(shape[-1]) / _SAMPLE_RATE
    pitch = _PITCH * (1.0 + 0.1 * np.sin(2.0 * np.pi * 2.0 * seconds))
    phase = 2.0 * np.pi * np.cumsum(pitch) / _SAMPLE_RATE
    overtones = np.arange(1, _HARMONICS + 1)[:, None]
    tone = (np.sin(overtones * phase) / overtones).sum(axis=0)
    loudness = 0.15 * (0.6 + 0.4 * np.sin(2.0 * np.pi * 3.0 * seconds))
    samples: np.ndarray = loudness * tone + 0.01 * rng.standard_normal(shape)
    return samples
