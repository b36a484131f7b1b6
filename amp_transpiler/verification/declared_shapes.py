"""Compares the declared shapes of outputs with those that a run gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.verification.accuracy import Reference

__all__ = ["open_contradicted_sizes"]


def open_contradicted_sizes(model: ir.Model, reference: Reference) -> tuple[str, ...]:
    """Make the sizes of outputs open where a run of the source gave other sizes than the model declares.

    A size is contradicted if it is another number, or has the name of a size of an input that is another number.

    Args:
        model: the prepared program.
        reference: the samples and outputs of the source.

    Returns:
        A note for each such output.
    """
    notes = []
    for value in model.graph.outputs:
        name, declared = str(value.name), value.shape
        shapes = [
            (sample, outputs.get(name)) for sample, outputs in zip(reference.samples, reference.outputs, strict=True)
        ]
        for sample, output in shapes:
            wrong = set(_contradicted(model, declared, output, sample))
            if declared is None or not wrong:
                continue
            value.shape = ir.Shape([None if axis in wrong else size for axis, size in enumerate(declared)])
            size, left = list(np.asarray(output).shape), "the size is" if len(wrong) == 1 else "the sizes are"
            notes.append(
                f"fault of the source: output '{name}' is declared as {_words(declared)}, but a run gave "
                f"{size}; {left} left open. Correct the declaration in the file"
            )
            break
    return tuple(notes)


def _contradicted(
    model: ir.Model, declared: ir.Shape | None, output: object, sample: Mapping[str, object]
) -> Iterator[int]:
    """Yield the axes of an output whose size is another than declared; none where the rank differs."""
    if declared is None or not isinstance(output, np.ndarray) or output.ndim != len(declared):
        return
    fed = _named_sizes(model, sample)
    for axis, (wanted, size) in enumerate(zip(declared, output.shape, strict=True)):
        expected = wanted if isinstance(wanted, int) else fed.get(str(wanted.value))
        if expected is not None and expected >= 0 and expected != size:
            yield axis


def _named_sizes(model: ir.Model, sample: Mapping[str, object]) -> dict[str, int]:
    """Return the sizes of the named dimensions of a sample, without names that stand for several."""
    sizes_of_name: dict[str, set[int]] = {}
    for value in model.graph.inputs:
        fed = sample.get(str(value.name))
        if value.shape is None or not isinstance(fed, np.ndarray) or fed.ndim != len(value.shape):
            continue
        for name, size in zip(value.shape, fed.shape, strict=True):
            if not isinstance(name, int) and name.value is not None:
                sizes_of_name.setdefault(str(name.value), set()).add(size)
    return {name: next(iter(sizes)) for name, sizes in sizes_of_name.items() if len(sizes) == 1}


def _words(shape: ir.Shape) -> str:
    return "[" + ", ".join(str(size if isinstance(size, int) else size.value or "?") for size in shape) + "]"
