"""Records the difference between an output of the result and that of the float32 program."""

from __future__ import annotations

import dataclasses
import math

__all__ = ["OutputComparison"]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class OutputComparison:
    """The difference between an output of the emulated low program and that of the float32 program, over all samples.

    Attributes:
        name: the graph output.
        dtype: its element type in the float32 program.
        shape: its shape in the first sample.
        max_abs: largest absolute difference, over the elements that are finite in both.
        relative: the error that is judged, that of the worst part: the norm of its difference over its norm in float32,
            a fraction; 0 if both are zero. Parts are the whole, samples, and slices (docs/concepts/error.md).
        cosine: cosine of the angle between the two.
        nonfinite_reference: elements that are NaN or infinite in float32.
        nonfinite: elements that are NaN or infinite in low precision where float32 is finite.
        mismatched: for integer, boolean and string outputs: elements that differ.
        samples: how many input samples were compared.
        elements: how many elements were compared: all, but of floats only those that are finite in float32.
        structure_differs: it has another shape, length or kind of elements than in float32.
        excused: how many of the mismatched elements are labels that float32 decided by a hair's breadth.
        as_numbers: small integers that floats were rounded to: `relative` and `max_abs` are theirs, none counts as
            mismatched.
        top1: for scores of classes: share of the rows whose best class is the same; else None.
        top5: share of the rows whose best class in float32 is among the best five; None without scores of six classes.
        iou: for masks, maps of labels and boxes: intersection over union; else None.
        rare: for probabilities of classes: the error of the class with the largest one, however rare it is; else None.
        neighbours: for embeddings: share of the rows whose nearest row is the same; else None.
        part: which part has the error `relative`, in words; empty for the whole.
        whole: the error of the whole; None: it is `relative`.
        of_spread: norm of the difference over that of the float32 output without its mean; None if it does not vary.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    relative: float
    cosine: float
    nonfinite_reference: int = 0
    nonfinite: int = 0
    mismatched: int = 0
    samples: int = 1
    elements: int = 0
    structure_differs: bool = False
    excused: int = 0
    as_numbers: bool = False
    top1: float | None = None
    top5: float | None = None
    iou: float | None = None
    rare: float | None = None
    neighbours: float | None = None
    part: str = ""
    whole: float | None = None
    of_spread: float | None = None

    @property
    def snr_db(self) -> float:
        """The signal-to-noise ratio in decibels; infinite if the floats are equal."""
        error = self.of_all
        return -20.0 * math.log10(error) if error else math.inf

    @property
    def of_all(self) -> float:
        """The error of the whole: norm of the difference over norm of the float32 output, all elements together."""
        return self.relative if self.whole is None else self.whole

    @property
    def mismatch(self) -> float:
        """The share of the elements that differ and are not excused."""
        return (self.mismatched - self.excused) / self.elements if self.elements else 0.0

    def __repr__(self) -> str:
        faults = "".join(f", {name}={count}" for name in ("nonfinite", "mismatched") if (count := getattr(self, name)))
        errors = f"relative={self.relative:.3g}, max_abs={self.max_abs:.3g}"
        errors += f" ({self.part}; the whole {self.of_all:.3g})" if self.part else ""
        return f"OutputComparison({self.name!r}, {self.dtype!r}, {self.shape}, {errors}{faults})"
