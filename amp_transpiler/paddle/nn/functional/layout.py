"""Moves the channel axis, and reads padding in all forms that Paddle accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.building import builder_of, wrap
from amp_transpiler.program.program import Variable

__all__ = ["Padding", "as_given", "channels_first", "padding_attributes"]

Padding = int | str | Sequence[int] | Sequence[Sequence[int]]

_FIRST = ("NC", "NCL", "NCHW", "NCDHW")
_LAST = ("NLC", "NHWC", "NDHWC")


def channels_first(x: Variable, data_format: str) -> Variable:
    """Return `x` with its channels at axis 1, where ONNX expects them.

    Raises:
        OptionError: there is no such format.
    """
    if not _is_last(data_format):
        return x
    return wrap(x, builder_of(x).transpose(x.value, [0, x.ndim - 1, *range(1, x.ndim - 1)]))


def as_given(y: Variable, data_format: str) -> Variable:
    """Return `y`, whose channels are at axis 1, in the requested format."""
    if not _is_last(data_format):
        return y
    return wrap(y, builder_of(y).transpose(y.value, [0, *range(2, y.ndim), 1]))


def _is_last(data_format: str) -> bool:
    if data_format not in (*_FIRST, *_LAST):
        raise OptionError(f"unknown data_format {data_format!r}: expected one of {', '.join((*_FIRST, *_LAST))}")
    return data_format in _LAST


def padding_attributes(padding: Padding, spatial: int, data_format: str, what: str) -> dict[str, Any]:
    """Return the ONNX attributes that pad a window's operator.

    Args:
        padding: `SAME` or `VALID`; a number; a number for each spatial axis; (before, after) for each spatial axis,
            flat or as pairs; or pairs for all axes, (0, 0) for batch and channels.
        spatial: how many spatial axes there are.
        data_format: where the channels are among the pairs for all axes.
        what: the function's name, for error messages.

    Raises:
        OptionError: it has none of these forms.
    """
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return {}
        if padding.upper() == "SAME":
            return {"auto_pad": "SAME_UPPER"}
    else:
        pairs = _pairs(padding, spatial, data_format)
        if pairs is not None and all(amount >= 0 for pair in pairs for amount in pair):
            return {"pads": [before for before, _ in pairs] + [after for _, after in pairs]}
    raise OptionError(
        f"{what}: padding must be 'SAME', 'VALID', a number, {spatial} numbers, {2 * spatial} numbers (before and "
        f"after each axis) or pairs, none negative, got {padding!r}"
    )


def _pairs(
    padding: int | Sequence[int] | Sequence[Sequence[int]], spatial: int, data_format: str
) -> list[tuple[int, int]] | None:
    if isinstance(padding, int):
        return [(padding, padding)] * spatial
    flat: list[int] = []
    nested = [item for item in padding if not isinstance(item, int)]
    if nested:
        pairs = [(pair[0], pair[1]) for pair in nested if len(pair) == 2]
        if len(pairs) != len(padding):
            return None
        if len(pairs) == spatial + 2:
            others = [pairs[0], pairs[-1 if _is_last(data_format) else 1]]
            pairs = pairs[1:-1] if _is_last(data_format) else pairs[2:]
            return pairs if others == [(0, 0), (0, 0)] else None
        return pairs if len(pairs) == spatial else None
    flat = [item for item in padding if isinstance(item, int)]
    if len(flat) in (1, spatial):
        return [(amount, amount) for amount in (flat * spatial if len(flat) == 1 else flat)]
    return list(zip(flat[::2], flat[1::2], strict=True)) if len(flat) == 2 * spatial else None
