"""Finds the first node at which two releases of ONNX Runtime compute something else.

Results of nodes become outputs of the model, a few at a time, so that memory stays bounded: in the order of the model,
until one differs by more than rounding.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from amp_transpiler.report.release_difference import ReleaseDeparture

__all__ = ["RunBoth", "departures"]

logger = logging.getLogger(__name__)

RunBoth = Callable[[pathlib.Path, Sequence[str]], "tuple[pathlib.Path, pathlib.Path] | None"]
"""Runs a model in both releases on the first sample, fetches these outputs, and returns the files of their results;
None where one of them does not run."""

_FIRST_GROUP, _LARGEST_GROUP = 8, 256  # results that are fetched in one run
_GROUP_BYTES = 256e6
_ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-4, "float16": 2.0**-7, "float32": 2.0**-12, "float64": 2.0**-12}
"""Type -> the difference of a result, over its norm, that the order of sums may make in a deep model; numbers of
float64 are often made of float32 ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """A result in both releases."""

    old: np.ndarray
    new: np.ndarray

    @property
    def is_same(self) -> bool:
        """Whether every bit but the payload of a NaN is the same."""
        return (
            self.old.dtype == self.new.dtype
            and self.old.shape == self.new.shape
            and bool(np.array_equal(self.old, self.new, equal_nan=self.old.dtype.kind == "f"))
        )

    @property
    def error(self) -> float:
        """The difference over the old result, by norms; of other types than floats the share that differs."""
        if self.old.dtype != self.new.dtype or self.old.shape != self.new.shape:
            return math.inf
        if self.old.dtype.kind != "f":
            return float(np.mean(self.old != self.new)) if self.old.size else 0.0
        finite = np.isfinite(self.old)
        if not np.array_equal(finite, np.isfinite(self.new)):
            return math.inf
        old, new = self.old[finite].astype(np.float64), self.new[finite].astype(np.float64)
        norm = float(np.linalg.norm(old))
        return float(np.linalg.norm(new - old)) / norm if norm else float(np.linalg.norm(new))

    def is_rounding(self, coarsest: str) -> bool:
        """Whether kernels that round in another order may differ by as much, in a model with floats of this type."""
        itself = _ROUNDING.get(self.old.dtype.name, 0.0)
        return self.error <= (max(itself, _ROUNDING[coarsest]) if itself else 0.0)


def departures(
    model: onnx.ModelProto,
    values: Sequence[str],
    folder: pathlib.Path,
    run_both: RunBoth,
    *,
    optimized: bool,
    coarsest: str = "float32",
) -> Iterator[ReleaseDeparture]:
    """Yield the first result that differs at all, and the first that differs by more than rounding.

    Args:
        model: the model, whose weights may lie outside; its outputs change.
        values: names of results that are looked at, in the order of computation.
        folder: where files of the model are written; data files that it names lie there.
        run_both: runs a file.
        optimized: what `ReleaseDeparture.optimized` says.
        coarsest: the coarsest type of floats in the model: what is computed from such numbers has their rounding.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    differs = False
    for name, pair in _pairs(model, values, folder, run_both):
        if pair.is_same:
            continue
        is_rounding = pair.is_rounding(coarsest)
        if not differs or not is_rounding:
            node = makers[name]
            yield ReleaseDeparture(
                node=node.name or name,
                op=node.op_type if not node.domain else f"{node.domain}::{node.op_type}",
                value=name,
                error=pair.error,
                optimized=optimized,
                rounding=is_rounding,
            )
        differs = True
        if not is_rounding:
            return


def _pairs(
    model: onnx.ModelProto, values: Sequence[str], folder: pathlib.Path, run_both: RunBoth
) -> Iterator[tuple[str, _Pair]]:
    size, start = _FIRST_GROUP, 0
    while start < len(values):
        group = values[start : start + size]
        files = _run_group(model, group, folder, run_both)
        if files is None:
            logger.info("%d results cannot be fetched, such as '%s'", len(group), group[0])
        else:
            fetched = 0
            with np.load(files[0]) as old, np.load(files[1]) as new:
                for number, name in enumerate(group):
                    if str(number) in old.files and str(number) in new.files:
                        pair = _Pair(old[str(number)], new[str(number)])
                        fetched += pair.old.nbytes
                        yield name, pair
            size = min(_LARGEST_GROUP, 4 * size, max(1, int(_GROUP_BYTES * len(group) / max(1, fetched))))
        start += len(group)


def _run_group(
    model: onnx.ModelProto, group: Sequence[str], folder: pathlib.Path, run_both: RunBoth
) -> tuple[pathlib.Path, pathlib.Path] | None:
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in group)
    file = folder / "exposed.onnx"
    file.write_bytes(model.SerializeToString())
    try:
        return run_both(file, group)
    finally:
        file.unlink()
