"""16-bit floats of the source made float32, exactly: the start of a conversion to another format."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.graph.dtypes import dtype_name
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.float32_edit import Float32Edit, FloatKind
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.program.low_values import has_values_of

__all__ = ["WidenLowFloats", "Widened"]


@dataclasses.dataclass
class Widened(PassResult):
    """16-bit floats widened.

    Attributes:
        formats: names of the formats that some value had.
        constants: those of the values that were constants, by name, with the 16-bit tensor.
        casts_dropped: casts of the source that changed nothing any more.
    """

    formats: frozenset[str] = frozenset()
    constants: tuple[tuple[str, ir.TensorProtocol], ...] = ()
    casts_dropped: int = 0


class WidenLowFloats(Pass[Widened]):
    """Makes values of 16-bit formats float32; counts the values.

    1. Constants are widened in the file, exactly; attributes that set an element type say float32.
    2. What was rounded to 16 bits is not rounded any more, so that the program is at least as accurate as it was.
    3. Casts between the formats that are left without a purpose are dropped.
    4. Inputs and outputs of the program keep their types, behind casts, unless they are in `new_io`.
    5. A node that cannot be float32 (unknown, of a fixed 16-bit type, or reinterpreting bits) stays, between casts.

    Args:
        formats: the element types to widen.
        new_io: names of inputs and outputs that become float32 themselves.

    Raises:
        OptionError: an input or output that must keep its type is a sequence, which cannot be cast, or a 16-bit value
            is in reach of an operator with bodies of unknown meaning.
    """

    def __init__(self, formats: Collection[ir.DataType], new_io: Collection[str] = ()) -> None:
        self._kind = FloatKind(frozenset(formats), "16-bit floats", "keep their format", "--io-types {}=low")
        self._new_io = frozenset(new_io)

    def call(self, model: ir.Model) -> Widened:
        if not has_values_of(model, self._kind.formats):
            return Widened(model, modified=False)
        edit = Float32Edit(model, self._kind, self._new_io)
        edit.look()
        edit.run()
        if not edit.values:
            return Widened(model, modified=False)
        dropped = CleanCasts()(model).removed
        formats = frozenset(dtype_name(dtype) for dtype in edit.formats)
        note = f"the source's {' and '.join(sorted(formats))} was made float32 first, exactly: {edit.summary(dropped)}"
        return Widened(
            model,
            modified=True,
            count=len(edit.values),
            notes=(note,),
            formats=formats,
            constants=tuple(edit.constants),
            casts_dropped=dropped,
        )
