"""Detects numbers that a formula made though layers read them as weights: Fourier bases, filters, windows.

Exporters write them as they write learnt weights, so only the numbers tell. What training has changed has none of these
regularities: no learnt filter is its own mirror image to five digits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["is_signal_filter", "is_window"]

_LEAST_TAPS = 8  # shorter filters may be learnt ones that happen to look regular
_LEAST_WAVE = 16  # numbers in a row that is looked at for its frequency, and in a window
_LEAST_ROWS = 4
_SAME = 4e-5  # of the largest number: float32, and the rounding of the formula
_NOTHING = 1e-5  # of the largest number: the ends of a window
_IN_TONE = 0.9  # share of a row's energy that one frequency holds
_LOBE = 3.0  # half the width of a tone's spectrum, in periods over the length of its window


def is_signal_filter(array: np.ndarray) -> bool:
    """Whether the weights of a convolution of one channel, or of a matrix product, come from a formula.

    Known are windowed sines and cosines (Fourier and constant-Q transforms), banks of triangles over frequencies (mel),
    and filters that are mirror images of themselves or each other (low-pass filters, windowed sincs of resamplers).

    Args:
        array: [filters, 1, ..., taps], or a matrix, either way round.
    """
    sizes = [size for size in array.shape if size != 1]
    if len(sizes) not in (1, 2) or max(sizes) < _LEAST_TAPS or not array.size:
        return False
    if len(sizes) == 1:
        return _are_mirrored(array.reshape(1, -1))
    rows = array.reshape(sizes)
    if array.ndim > 2:
        return _are_mirrored(rows) or _are_tones(rows)
    return any(is_known(matrix) for matrix in (rows, rows.T) for is_known in (_are_bands, _are_tones))


def is_window(array: np.ndarray) -> bool:
    """Whether a vector is a window over samples: symmetric, without a sign, and not all one number."""
    if array.size < _LEAST_WAVE or float(array.min()) < -_NOTHING * float(array.max()):
        return False
    return _are_mirrored(array.reshape(1, -1))


def _are_mirrored(rows: np.ndarray) -> bool:
    """Whether the rows, without the zeros at their ends, stay the same set when each is reversed."""
    if rows.shape[1] < _LEAST_TAPS or len(rows) > rows.shape[1]:
        return False
    largest = float(np.abs(rows).max())
    if not np.isfinite(largest) or largest == 0:
        return False
    cut = [_between_ends(row.astype(np.float64), largest * _NOTHING) for row in rows]
    if any(row.size < 3 or np.ptp(row) <= largest * _SAME for row in cut):
        return False
    return all(_is_among(row, (other[::-1] for other in cut), largest * _SAME) for row in cut)


def _is_among(row: np.ndarray, others: Iterable[np.ndarray], tolerance: float) -> bool:
    return any(row.size == other.size and bool((np.abs(row - other) <= tolerance).all()) for other in others)


def _between_ends(row: np.ndarray, least: float) -> np.ndarray:
    """Return a row from its first number above `least` to its last."""
    at = np.flatnonzero(np.abs(row) > least)
    return row[at[0] : at[-1] + 1] if at.size else row[:0]


def _are_tones(rows: np.ndarray) -> bool:
    """Whether every row is one frequency under a window. Frequencies rise or fall, but for one step back."""
    if rows.shape[1] < _LEAST_WAVE or len(rows) < _LEAST_ROWS or _tone(rows[len(rows) // 3]) is None:
        return False
    largest = np.abs(rows).max(1)
    tones = [_tone(row) for row in rows[largest > _NOTHING * largest.max()]]
    if len(tones) < _LEAST_ROWS or None in tones or 4 * len(set(tones)) < len(tones):
        return False
    steps = np.diff(np.array(tones, np.int64))
    return int((steps < 0).sum()) <= 1 or int((steps > 0).sum()) <= 1


def _tone(row: np.ndarray) -> int | None:
    """Return the frequency that holds nearly all of a row's energy; None if none does."""
    wide = row.astype(np.float64)
    spectrum = np.abs(np.fft.rfft(wide, 4 * wide.size)) ** 2
    support = _between_ends(wide, 1e-4 * float(np.abs(wide).max())).size
    if support < _LEAST_TAPS or not np.isfinite(spectrum).all():
        return None
    width = int(np.ceil(_LOBE * 4 * wide.size / support))
    peak = int(spectrum.argmax())
    inside = float(spectrum[max(0, peak - width) : peak + width + 1].sum())
    return peak if inside > _IN_TONE * float(spectrum.sum()) else None


def _are_bands(columns: np.ndarray) -> bool:
    """Whether every column is a hill over some rows and zero elsewhere, and their peaks are in order."""
    if min(columns.shape) < _LEAST_ROWS or (columns[: _LEAST_ROWS * _LEAST_WAVE] < 0).any() or (columns < 0).any():
        return False
    if 2 * np.count_nonzero(columns) > columns.size:
        return False
    live = columns[:, columns.max(0) > 0]
    if live.shape[1] < _LEAST_ROWS or (np.diff(live.argmax(0)) < 0).any():
        return False
    overlap = (np.count_nonzero(live, axis=1) > 1).any()  # as those of the identity do not
    return bool(overlap) and all(_is_hill(column) for column in live.T)


def _is_hill(column: np.ndarray) -> bool:
    """Whether the numbers that are not zero lie together, rise to a peak and fall."""
    inside = _between_ends(column, 0.0)
    falls = np.diff(inside) < 0
    rises = np.diff(inside) > 0
    return bool((inside > 0).all()) and not (falls.any() and rises[int(falls.argmax()) :].any())
