"""Reads the element types that a user declares of operators without a schema, such as plugins of TensorRT.

Options are read before anything is imported that knows a model; `custom_nodes` looks the operators up.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from amp_transpiler.errors import OptionError, visible

__all__ = [
    "AS_IN_SOURCE",
    "PortType",
    "PortTypes",
    "checked_custom_types",
    "parse_custom_types",
    "port_types",
]

PortType: TypeAlias = Literal["fp16", "bf16", "fp32", "any"]

AS_IN_SOURCE: PortType = "any"

_OPTION = "--custom-op-types"
_EXPECTED = "expected such as 'my.ops::Scale:[fp16,fp32]:[fp16]', or 'my.ops::Scale:fp16' for every float"
_TYPES: Mapping[str, PortType] = {
    "fp16": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
    "any": "any",
    "-": "any",
}
_LISTS = re.compile(r"\[([^\[\]]*)\]:\[([^\[\]]*)\]")


@dataclasses.dataclass(frozen=True, slots=True)
class PortTypes:
    """The element types that an operator takes and returns in the converted model.

    Attributes:
        inputs: of each input; None: `every` holds for those that are floats.
        outputs: of each output, likewise.
        every: the type of every float input and output, where they are not listed.
    """

    inputs: tuple[PortType, ...] | None
    outputs: tuple[PortType, ...] | None
    every: PortType = AS_IN_SOURCE

    @property
    def used(self) -> frozenset[PortType]:
        """The types that it names."""
        return frozenset((self.every, *(self.inputs or ()), *(self.outputs or ())))

    def __str__(self) -> str:
        if self.inputs is None or self.outputs is None:
            return self.every
        return f"[{','.join(self.inputs)}]:[{','.join(self.outputs)}]"


def parse_custom_types(text: str) -> tuple[str, str]:
    """Return an operator and its types, in one spelling, of a text such as `Scale:[fp16,fp32]:[fp16]`.

    Raises:
        OptionError: it is no such text.
    """
    lists = _LISTS.search(text)
    operator, colon, types = text.rpartition(":") if lists is None else (text[: lists.start() - 1], ":", lists.group())
    if not operator or not colon or operator.endswith(":") or f"{operator}:{types}" != text:
        raise OptionError(f"{_OPTION} {visible(text, 80)!r} is no OP:[TYPES]:[TYPES]: {_EXPECTED}")
    return operator, str(port_types(operator, types))


def checked_custom_types(declared: Any) -> dict[str, str] | None:
    """Return declarations by operator, each in one spelling; None if there are none.

    Args:
        declared: a dict of operator -> `[fp16,fp32]:[fp16]`, `fp16` for all, or two lists; or a text as on the command
            line, or a list of such texts.

    Raises:
        OptionError: it is none of these, or names a type that is unknown.
    """
    if declared is None:
        return None
    if isinstance(declared, Mapping):
        pairs = [(str(operator), str(port_types(str(operator), types))) for operator, types in declared.items()]
    else:
        texts = [declared] if isinstance(declared, str) else declared
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise OptionError(f"{_OPTION}: got {type(declared).__name__}, {_EXPECTED}, or a dict")
        pairs = list(map(parse_custom_types, texts))
    checked: dict[str, str] = {}
    for operator, types in pairs:
        if checked.setdefault(operator, types) != types:
            raise OptionError(f"{_OPTION}: {operator!r} has the types {checked[operator]} and {types}: drop one")
    return checked or None


def port_types(operator: str, types: object) -> PortTypes:
    """Return the types of an operator, of a text or of two lists.

    Raises:
        OptionError: it is neither, or names a type that is unknown.
    """
    if isinstance(types, str):
        lists = _LISTS.fullmatch(types)
        if lists is None:
            return PortTypes(None, None, _port_type(operator, types))
        inputs, outputs = (text.split(",") if text.strip() else [] for text in lists.groups())
    elif isinstance(types, (list, tuple)) and len(types) == len(("inputs", "outputs")):
        inputs, outputs = types
    else:
        inputs, outputs = "", ""
    if isinstance(inputs, str) or isinstance(outputs, str):
        raise OptionError(f"{_OPTION}: {operator!r} has the types {visible(repr(types), 80)}: {_EXPECTED}")
    return PortTypes(
        tuple(_port_type(operator, type_) for type_ in inputs), tuple(_port_type(operator, type_) for type_ in outputs)
    )


def _port_type(operator: str, text: object) -> PortType:
    type_ = _TYPES.get(str(text).strip().lower())
    if type_ is None:
        raise OptionError(
            f"{_OPTION}: {visible(str(text), 40)!r} of operator {operator!r} is no type: expected fp16, bf16, fp32, "
            "or any (as in the source)"
        )
    return type_
