"""Measures the difference between two sets of outputs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.report import OutputComparison
from amp_transpiler.verification.metrics import Agreement
from amp_transpiler.verification.output_error import PartErrors, WorstPart
from amp_transpiler.verification.output_kind import OutputKind

__all__ = ["compare_outputs", "relative_error"]

_CHUNK = 1_000_000  # elements that are looked at together: they bound the memory that a comparison takes
_FEWEST_OF_SPREAD = 8  # a spread is reported of at least so many elements
_NO_SPREAD = 2.0**-44  # of the square of the norm: less is float32's own rounding
_LARGEST_EXPONENT = 1023  # of a power of two in float64


def compare_outputs(
    reference: Iterable[Mapping[str, Any]],
    result: Iterable[Mapping[str, Any]],
    kinds: Mapping[str, OutputKind] | None = None,
) -> dict[str, OutputComparison]:
    """Compare the outputs of two programs on the same samples.

    The error of an output is that of its worst part (`output_error.py`); all other figures are over all samples
    together. Samples are taken one after the other, so both sides may be made while they are compared. Norms are
    float64, over the elements that are finite in the reference. A result that is not finite there counts in `nonfinite`
    and makes `relative` infinite. Elements that are not finite in the reference are ignored. For arrays of different
    shape or kind of elements, or sequences of different length, `structure_differs`, `relative` is infinite, and
    `mismatched` the number of elements. A complex number counts as two elements.

    Args:
        reference: for each sample, output name -> array, list of arrays (a sequence), mapping, or None (an empty
            optional).
        result: the same for the judged program.
        kinds: output name -> how its numbers are to be read, as far as the graph says it.

    Raises:
        InputError: the numbers of samples differ, or an output is missing from a result.
    """
    totals: dict[str, _Total] = {}
    wanted, got = 0, 0
    for index, (sample, other) in enumerate(itertools.zip_longest(reference, result)):
        wanted, got = wanted + (sample is not None), got + (other is not None)
        if wanted == got:
            _add_sample(totals, index, sample, other, kinds or {})
    if wanted != got:
        raise InputError(f"{wanted} reference samples but {got} results: they cannot be paired")
    return {name: total.comparison() for name, total in totals.items()}


def _add_sample(
    totals: dict[str, _Total],
    index: int,
    sample: Mapping[str, Any],
    other: Mapping[str, Any],
    kinds: Mapping[str, OutputKind],
) -> None:
    for name, value in sample.items():
        if name not in other:
            raise InputError(f"sample {index}: output {name!r} is missing from the result, which has {sorted(other)}")
        if name not in totals:
            totals[name] = _Total(name, _dtype_name(value), _shape(value), Agreement(kinds.get(name)))
        totals[name].add(value, other[name])


@dataclasses.dataclass(slots=True)
class _Total:
    """Counts and sums over all samples of an output.

    The numbers in the sums are divided by `scale` before they are squared: a power of two near the largest magnitude
    so far, so that no square of a float64 overflows, and none that matters vanishes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    agreement: Agreement
    samples: int = 0
    scale: float = 0.0
    difference: float = 0.0
    reference: float = 0.0
    result: float = 0.0
    product: float = 0.0
    max_abs: float = 0.0
    nonfinite_reference: int = 0
    nonfinite: int = 0
    mismatched: int = 0
    elements: int = 0
    structure_differs: bool = False
    total: float = 0.0  # of the reference, to tell its mean
    parts: PartErrors = dataclasses.field(default_factory=PartErrors)

    def add(self, reference: Any, result: Any) -> None:
        """Add a sample."""
        self.samples += 1
        wanted, got = _leaves(reference), _leaves(result)
        pairs: list[tuple[np.ndarray, np.ndarray | None]] = [(leaf, None) for leaf in wanted]
        if len(wanted) == len(got):
            pairs = list(zip(wanted, got, strict=True))
        else:
            self.structure_differs = True
        floats: list[tuple[np.ndarray, np.ndarray]] = []
        for leaf, other in pairs:
            if other is None or leaf.shape != other.shape or _kind(leaf) != _kind(other):
                self._add_different(leaf)
            else:
                self._add_alike(leaf, other)
                self.agreement.add(leaf, other)
                if _kind(leaf) == "float":
                    floats.append((leaf, other))
        self.parts.add(floats)

    def _add_different(self, leaf: np.ndarray) -> None:
        self.structure_differs = True
        self.elements += leaf.size
        self.mismatched += leaf.size

    def _add_alike(self, leaf: np.ndarray, other: np.ndarray) -> None:
        if _kind(leaf) in ("float", "complex"):
            for x, y in zip(_chunks(leaf), _chunks(other), strict=True):
                self._add_floats(_as_float64(x), _as_float64(y))
        else:
            self.elements += leaf.size
            self.mismatched += int(np.count_nonzero(leaf != other))

    def _add_floats(self, reference: np.ndarray, result: np.ndarray) -> None:
        known, good = np.isfinite(reference), np.isfinite(result)
        self.elements += int(np.count_nonzero(known))
        self.nonfinite_reference += int(np.count_nonzero(~known))
        self.nonfinite += int(np.count_nonzero(known & ~good))
        x, y = reference[known & good], result[known & good]
        largest = max(np.max(np.abs(x), initial=0.0), np.max(np.abs(y), initial=0.0))
        if not largest:
            return  # nothing to add, and no scale follows from it
        with np.errstate(over="ignore"):
            self.max_abs = max(self.max_abs, float(np.max(np.abs(x - y))))
        self._rescale(float(largest))
        x, y = x / self.scale, y / self.scale
        self.difference += float(np.sum(np.square(x - y)))
        self.reference += float(np.sum(np.square(x)))
        self.result += float(np.sum(np.square(y)))
        self.product += float(np.dot(x, y))
        self.total += float(np.sum(x))

    def _rescale(self, largest: float) -> None:
        scale = 2.0 ** min(math.frexp(largest)[1], _LARGEST_EXPONENT)
        if scale > self.scale:
            factor = (self.scale / scale) ** 2
            self.scale = scale
            self.difference *= factor
            self.reference *= factor
            self.result *= factor
            self.product *= factor
            self.total *= math.sqrt(factor)

    def comparison(self) -> OutputComparison:
        """Return the figures."""
        whole, part = self._whole(), self._worst_part()
        is_part = part.error > whole
        return OutputComparison(
            name=self.name,
            dtype=self.dtype,
            shape=self.shape,
            max_abs=math.inf if self.structure_differs else self.max_abs,
            relative=part.error if is_part else whole,
            part=part.name if is_part else "",
            whole=whole,
            of_spread=self._of_spread(),
            cosine=self._cosine(),
            nonfinite_reference=self.nonfinite_reference,
            nonfinite=self.nonfinite,
            mismatched=self.mismatched,
            samples=self.samples,
            elements=self.elements,
            structure_differs=self.structure_differs,
            **(Agreement() if self.structure_differs else self.agreement).figures(),
        )

    def _worst_part(self) -> WorstPart:
        is_broken = self.structure_differs or self.nonfinite
        return WorstPart(0.0, "") if is_broken else self.parts.worst()

    def _of_spread(self) -> float | None:
        """Return the norm of the difference over that of the reference without its mean; None if it does not vary."""
        counted = self.elements - self.nonfinite
        if self.structure_differs or self.nonfinite or counted < _FEWEST_OF_SPREAD:
            return None
        varied = self.reference - self.total**2 / counted
        return math.sqrt(self.difference / varied) if varied > _NO_SPREAD * self.reference else None

    def _whole(self) -> float:
        if self.structure_differs or self.nonfinite:
            return math.inf
        return relative_error(self.difference, self.reference)

    def _cosine(self) -> float:
        """Return the cosine; 1 if both norms are zero (as without floats), 0 if one of them is."""
        if self.structure_differs:
            return 0.0
        norms = math.sqrt(self.reference) * math.sqrt(self.result)
        if norms == 0.0:
            return 1.0 if self.reference == self.result else 0.0
        return max(-1.0, min(1.0, self.product / norms))


def _leaves(value: Any) -> list[np.ndarray]:
    """Return the arrays of a value; of a mapping (from ai.onnx.ml's ZipMap), its keys and its values."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [np.asarray(list(value)), np.asarray(list(value.values()))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [np.asarray(value)]


def relative_error(difference: float, reference: float) -> float:
    """Return the norm of a difference over that of the reference, of their squares; infinite where only that is 0."""
    if difference == 0.0:
        return 0.0
    return math.sqrt(difference / reference) if reference else math.inf


def _kind(array: np.ndarray) -> str:
    """Return the kind of the elements. Formats that numpy does not know are recognised by name: bfloat16, int4."""
    if "float" in array.dtype.name:
        return "float"
    return {"c": "complex", "b": "boolean", "O": "text", "U": "text", "S": "text"}.get(array.dtype.kind, "integer")


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = np.ravel(array)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


def _as_float64(array: np.ndarray) -> np.ndarray:
    """Return the elements of an array of one dimension as float64; a complex number becomes two."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).view(np.float64)
    return array.astype(np.float64)


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
