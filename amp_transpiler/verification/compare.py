"""The difference between two sets of outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.report import OutputComparison

__all__ = ["compare_outputs"]


def compare_outputs(
    reference: Sequence[Mapping[str, Any]], result: Sequence[Mapping[str, Any]]
) -> dict[str, OutputComparison]:
    """Compare the outputs of two programs on the same samples, all samples of an output together.

    Norms are float64, over the elements that are finite in the reference. A result that is not finite there counts in
    `nonfinite` and makes `relative` infinite. Elements that are not finite in the reference are ignored. For arrays of
    different shape, or sequences of different length, `relative` is infinite and `mismatched` the number of elements.

    Args:
        reference: for each sample, output name -> array, list of arrays (a sequence), mapping, or None (an empty
            optional).
        result: the same for the judged program.

    Raises:
        InputError: the numbers of samples differ, or an output is missing from a result.
    """
    if len(reference) != len(result):
        raise InputError(f"{len(reference)} reference samples but {len(result)} results: they cannot be paired")
    names = list(dict.fromkeys(name for sample in reference for name in sample))
    return {name: _compare(name, reference, result) for name in names}


@dataclasses.dataclass(slots=True)
class _Sums:
    """Sums over all arrays of an output; numbers are divided by `scale` before they are squared."""

    scale: float
    difference: float = 0.0
    reference: float = 0.0
    result: float = 0.0
    product: float = 0.0
    max_abs: float = 0.0
    nonfinite_reference: int = 0
    nonfinite: int = 0
    mismatched: int = 0
    elements: int = 0
    wholly_different: bool = False


def _compare(
    name: str, reference: Sequence[Mapping[str, Any]], result: Sequence[Mapping[str, Any]]
) -> OutputComparison:
    pairs: list[tuple[np.ndarray, np.ndarray | None]] = []
    samples = [i for i, sample in enumerate(reference) if name in sample]
    structure_differs = False
    for i in samples:
        if name not in result[i]:
            raise InputError(f"sample {i}: output {name!r} is missing from the result, which has {sorted(result[i])}")
        wanted, got = _leaves(reference[i][name]), _leaves(result[i][name])
        structure_differs |= len(wanted) != len(got)
        pairs += [(leaf, got[k] if len(wanted) == len(got) else None) for k, leaf in enumerate(wanted)]
    sums = _Sums(_scale([leaf for leaf, _ in pairs]), wholly_different=structure_differs)
    for leaf, other in pairs:
        _add(sums, leaf, other)
    first = reference[samples[0]][name]
    return OutputComparison(
        name=name,
        dtype=_dtype_name(first),
        shape=_shape(first),
        max_abs=math.inf if sums.wholly_different else sums.max_abs,
        relative=_relative(sums),
        cosine=_cosine(sums),
        nonfinite_reference=sums.nonfinite_reference,
        nonfinite=sums.nonfinite,
        mismatched=sums.mismatched,
        samples=len(samples),
        elements=sums.elements,
        structure_differs=sums.wholly_different,
    )


def _leaves(value: Any) -> list[np.ndarray]:
    """Return the arrays of a value; of a mapping (from ai.onnx.ml's ZipMap), its keys and its values."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [np.asarray(list(value)), np.asarray(list(value.values()))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [np.asarray(value)]


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc" or (array.dtype.isbuiltin == 2 and "float" in array.dtype.name)


def _as_float64(array: np.ndarray) -> np.ndarray:
    """Return the elements in one dimension; a complex number counts as two."""
    flat = np.atleast_1d(array).reshape(-1)
    if array.dtype.kind == "c":
        return flat.astype(np.complex128).view(np.float64)
    return flat.astype(np.float64)


def _scale(leaves: list[np.ndarray]) -> float:
    """Return a power of two near the largest magnitude, so that no square of a float64 overflows or vanishes."""
    largest = 0.0
    for leaf in leaves:
        if _is_float(leaf) and leaf.size:
            magnitudes = np.abs(_as_float64(leaf))
            largest = max(largest, float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes))))
    return 2.0 ** math.frexp(largest)[1] if 0.0 < largest < 2.0**1023 else 1.0


def _add(sums: _Sums, reference: np.ndarray, result: np.ndarray | None) -> None:
    if result is None or reference.shape != result.shape or _is_float(reference) != _is_float(result):
        sums.wholly_different = True
        sums.mismatched += reference.size
        sums.elements += reference.size
    elif _is_float(reference):
        _add_floats(sums, _as_float64(reference), _as_float64(result))
    else:
        sums.elements += reference.size
        sums.mismatched += int(np.count_nonzero(reference != result))


def _add_floats(sums: _Sums, reference: np.ndarray, result: np.ndarray) -> None:
    known, good = np.isfinite(reference), np.isfinite(result)
    sums.elements += int(np.count_nonzero(known))
    sums.nonfinite_reference += int(np.count_nonzero(~known))
    sums.nonfinite += int(np.count_nonzero(known & ~good))
    both = known & good
    x, y = reference[both], result[both]
    if not x.size:
        return
    with np.errstate(over="ignore"):
        sums.max_abs = max(sums.max_abs, float(np.max(np.abs(x - y))))
        x, y = x / sums.scale, y / sums.scale
        sums.difference += float(np.sum(np.square(x - y)))
        sums.reference += float(np.sum(np.square(x)))
        sums.result += float(np.sum(np.square(y)))
        sums.product += float(np.dot(x, y))


def _relative(sums: _Sums) -> float:
    if sums.wholly_different or sums.nonfinite:
        return math.inf
    if sums.difference == 0.0:
        return 0.0
    return math.sqrt(sums.difference / sums.reference) if sums.reference else math.inf


def _cosine(sums: _Sums) -> float:
    """Return the cosine; 1 if both norms are zero (as without floats), 0 if one of them is."""
    if sums.wholly_different:
        return 0.0
    norms = math.sqrt(sums.reference) * math.sqrt(sums.result)
    if norms == 0.0:
        return 1.0 if sums.reference == sums.result else 0.0
    return max(-1.0, min(1.0, sums.product / norms))


def _dtype_name(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "map"
    if isinstance(value, (list, tuple)):
        return f"sequence({_dtype_name(value[0])})" if value else "sequence"
    dtype = np.asarray(value).dtype
    return "string" if dtype.kind in "OUS" else dtype.name


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, the length of a sequence or mapping."""
    if value is None:
        return ()
    return (len(value),) if isinstance(value, (list, tuple, Mapping)) else tuple(np.shape(value))
