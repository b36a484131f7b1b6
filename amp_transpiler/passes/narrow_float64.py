"""float64 of the source made float32: for a target that has no float64, or where it is slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constants import read
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, region_of
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.float32_edit import Float32Edit, FloatKind
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.phrases import counted, first_few, quoted
from amp_transpiler.program.low_values import has_values_of

__all__ = ["NarrowFloat64", "Narrowed"]

_FLOAT64 = FloatKind(
    frozenset({ir.DataType.DOUBLE}), "float64 values", "leave --float64 out", "--float64 float32-io, which changes '{}'"
)
_BLOCK = 1 << 20  # elements looked at in one go


@dataclasses.dataclass
class Narrowed(PassResult):
    """float64 values narrowed.

    Attributes:
        constants: those of the values that were constants, by name, with the tensor before.
    """

    constants: tuple[tuple[str, ir.TensorProtocol], ...] = ()


class NarrowFloat64(Pass[Narrowed]):
    """Makes float64 values float32; counts the values.

    1. Constants are rounded in the file; attributes that set an element type say float32.
    2. What nodes compute is rounded to float32, so the program computes something else, if only in its last digits.
    3. Casts between both formats that are left without a purpose are dropped.
    4. Inputs and outputs of the program keep their types, behind casts, unless they are in `new_io`.
    5. A node that cannot be float32 (unknown, of float64 only, reinterpreting bits) or that is inside a disable_amp
       region stays, between casts, with the constants that it reads.

    Args:
        new_io: names of inputs and outputs that become float32 themselves.

    Raises:
        OptionError: a constant has a finite number beyond float32's range, an input or output that must keep its type
            is a sequence, which cannot be cast, or an operator with bodies of unknown meaning works on float64.
    """

    def __init__(self, new_io: Collection[str] = ()) -> None:
        self._new_io = frozenset(new_io)

    def call(self, model: ir.Model) -> Narrowed:
        if not has_values_of(model, _FLOAT64.formats):
            return Narrowed(model, modified=False)
        edit = Float32Edit(model, _FLOAT64, self._new_io, lambda node: DISABLE_AMP in region_of(node))
        edit.look()
        _check_range(edit)
        edit.run()
        if not edit.values:
            return Narrowed(model, modified=False, notes=tuple(_words_on_the_rest(edit)))
        dropped = CleanCasts()(model).removed
        note = f"the source's float64 was made float32 first, as --float64 asks: {edit.summary(dropped)}"
        return Narrowed(
            model,
            modified=True,
            count=len(edit.values),
            notes=(note, *_words_on_the_rest(edit)),
            constants=tuple(edit.constants),
        )


def _check_range(edit: Float32Edit) -> None:
    """Refuse constants that float32 cannot hold: any other number in their place would be a guess."""
    beyond = [name for name, tensor in edit.tensors() if read(tensor, _overflows)]
    if beyond:
        which, hold = ("constant", "holds") if len(beyond) == 1 else ("constants", "hold")
        raise OptionError(
            f"--float64 float32: {which} {first_few(quoted(beyond))} {hold} numbers beyond float32's range, which ends "
            f"at {FLOAT32.max:.3g}: make them smaller in the source, or keep the nodes that read them in float64 with "
            "--disable-amp"
        )


def _overflows(array: np.ndarray) -> bool:
    """Whether a finite number rounds to infinity."""
    flat = array.reshape(-1)
    for at in range(0, flat.size, _BLOCK):
        block = flat[at : at + _BLOCK]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = block.astype(np.float32)
        if bool((np.isfinite(block) & ~np.isfinite(narrow)).any()):
            return True
    return False


def _words_on_the_rest(edit: Float32Edit) -> Iterator[str]:
    """Say what stays float64."""
    if edit.kept_nodes:
        nodes = [f"'{node.name}' ({operator_name(node)})" for node in edit.kept_nodes]
        yield f"{counted(len(nodes), 'node')} stayed float64, between casts: {first_few(nodes)}"
    if edit.kept_io:
        names = first_few(quoted(list(dict.fromkeys(edit.kept_io))))
        yield f"inputs and outputs stayed float64 (--float64 float32-io changes them): {names}"
