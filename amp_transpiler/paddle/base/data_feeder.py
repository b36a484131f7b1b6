"""Stacks samples into the feed of a run: `DataFeeder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, innermost_text
from amp_transpiler.paddle.framework.programs import default_main_program, lod_level
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.places import Place

__all__ = ["DataFeeder"]


class DataFeeder:
    """Stacks the samples of a batch into one array for each input.

        feeder = DataFeeder([image, label], place)
        exe.run(program, feed=feeder.feed([(image_0, label_0), (image_1, label_1)]))

    Args:
        feed_list: the inputs, as variables or names, in the order of a sample's fields.
        place: Paddle's, no effect: the Executor moves feeds to its device.
        program: the program that names belong to; the default main program unless given.

    Raises:
        InputError: an input was declared with a `lod_level`.
    """

    def __init__(
        self, feed_list: Sequence[Variable | str], place: Place | None = None, program: Program | None = None
    ) -> None:
        del place
        main = default_main_program() if program is None else program
        self.inputs = [main.var(item) if isinstance(item, str) else item for item in feed_list]
        for variable in self.inputs:
            if lod_level(variable):
                raise InputError(
                    f"DataFeeder: '{variable.name}' was declared with lod_level={lod_level(variable)}, and ONNX has no "
                    "sequences of several lengths: pad the samples, declare the input without it, and feed lengths "
                    "or a mask beside it"
                )

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, np.ndarray]:
        """Return input name -> array [samples, ...], of the input's element type.

        Args:
            iterable: samples, each with one field for every input. A field is cut into the input's shape, where that is
                known, so that a label may be a plain number.

        Raises:
            InputError: there are no samples, a sample has another number of fields, or the fields of an input do not
                make one array of its shape.
        """
        samples = list(iterable)
        if not samples:
            raise InputError("feed: the batch has no samples")
        for number, sample in enumerate(samples):
            if len(sample) != len(self.inputs):
                names = ", ".join(variable.name for variable in self.inputs)
                raise InputError(
                    f"feed: sample {number} has {len(sample)} fields, expected {len(self.inputs)}: {names}"
                )
        return {
            variable.name: _stacked(variable, fields)
            for variable, fields in zip(self.inputs, zip(*samples, strict=True), strict=True)
        }


def _stacked(variable: Variable, fields: Sequence[Any]) -> np.ndarray:
    inner, dtype = variable.shape[1:], variable.value.dtype or ir.DataType.FLOAT
    try:
        array = np.stack([np.asarray(field) for field in fields]).astype(dtype.numpy())
        return array if any(size < 0 for size in inner) else array.reshape((len(fields), *inner))
    except ValueError as error:
        shapes = sorted({np.shape(field) for field in fields})[:3]
        raise InputError(
            f"feed: the samples of '{variable.name}' have the shapes {', '.join(map(str, map(list, shapes)))}, "
            f"expected {list(inner)} each ({innermost_text(error)})"
        ) from error
