"""Where a program has numbers that may be multiplied by a power of two: constants, and epsilons that are attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import operator_name
from amp_transpiler.rescale.rules import EPSILONS, rule_of

__all__ = ["Numbers", "Place", "Places", "epsilon_of", "is_scalable", "key_of_product", "numbers_in", "places_of"]

_COPIED = 1 << 14  # elements: so small a constant may be copied for one of its readers
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Numbers that one exponent scales.

    Attributes:
        value: the constant; None for an attribute.
        node: the reader that the constant is copied for, or the node that has the attribute; None: all readers.
        attribute: the name of the attribute; empty for a constant.
        index: the input of the reader, for a constant that is the same at every scale, so that none is copied.
    """

    value: ir.Value | None
    node: ir.Node | None = None
    attribute: str = ""
    index: int | None = None

    @property
    def key(self) -> str:
        """A name of the place that another load of the program has, too: that of the constant, with the reader's."""
        if self.value is None:
            assert self.node is not None, "an attribute has a node"
            return f"{self.node.name}.{self.attribute}"
        return str(self.value.name) if self.node is None else f"{self.value.name} of {self.node.name}"


def key_of_product(value: ir.Value) -> str:
    """Return a name for the product of a value and a power of two, which is added to a program."""
    return f"new product of {value.name}"


class Places:
    """The places of a program, by who reads them.

    Args:
        model: a typed program without functions.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._of: dict[Place, Place] = {}  # one object a place
        self._fixed: dict[ir.Value, bool] = {}
        self._zeros: dict[ir.Value, bool] = {}

    def of_input(self, node: ir.Node, index: int) -> Place | None:
        """Return the place of a constant that a node of the main graph reads; None if it must stay as it is."""
        value = node.inputs[index]
        tensor = constant_of(value)
        assert value is not None
        assert tensor is not None
        if len(value.uses()) > 1 and self._is_scaled_freely(value, tensor):
            return self._place(Place(value, node, index=index))
        if not self._is_shared(value):
            return self._place(Place(value))
        if tensor.size <= _COPIED:
            return self._place(Place(value, node))
        return None if self._is_fixed(value) else self._place(Place(value))

    def of_attribute(self, node: ir.Node, name: str) -> Place:
        """Return the place of a number that is an attribute."""
        return self._place(Place(None, node, name))

    def _place(self, place: Place) -> Place:
        return self._of.setdefault(place, place)

    def _is_shared(self, value: ir.Value) -> bool:
        return self._is_fixed(value) or len({id(user) for user, _ in value.uses()}) > 1

    def _is_scaled_freely(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
        """Whether a constant ties nothing: zeros are the same at every scale, and biases of zeros are often shared."""
        if value not in self._zeros:
            self._zeros[value] = read(tensor, _numbers).are_scaled_freely
        return self._zeros[value]

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether somebody else sees a constant: a body, or the caller, who may fetch or replace it."""
        if value not in self._fixed:
            main = self._model.graph
            seen = value.is_graph_output() or value.is_graph_input()
            users = [user for user, _ in value.uses()]
            self._fixed[value] = seen or any(user.graph is not main or has_bodies(user) for user in users)
        return self._fixed[value]


def places_of(model: ir.Model) -> Iterator[Place]:
    """Yield every place of a program that a rule mentions, once."""
    places, known = Places(model), set[str]()
    for node in model.graph:
        if has_bodies(node):
            continue
        for kind, index in sorted(rule_of(node).mentioned, key=str):
            if kind == "@" and isinstance(index, str):
                candidates = [places.of_attribute(node, index)]
            else:
                candidates = [
                    place
                    for at, value in enumerate(node.inputs)
                    if is_scalable(value) and (place := places.of_input(node, at)) is not None
                ]
            for place in candidates:
                if place.key not in known:
                    known.add(place.key)
                    yield place


def is_scalable(value: ir.Value | None) -> bool:
    """Whether a value is a float32 constant, which may be multiplied by a power of two."""
    tensor = constant_of(value)
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """What is to be known of the numbers of a place.

    Attributes:
        largest: the largest finite magnitude; 0 if all are zero.
        smallest: the least that is not zero; infinite if all are zero.
        lowest: the power of two at which `counts` begins.
        counts: how many of the numbers other than zero lie between each power of two and the next.
        size: how many numbers there are.
    """

    largest: float
    smallest: float
    lowest: int
    counts: tuple[int, ...]
    size: int

    @property
    def are_scaled_freely(self) -> bool:
        """Whether a power of two changes none of them: zeros and infinities."""
        return self.largest == 0.0


def numbers_in(place: Place) -> Numbers:
    """Measure the numbers of a place."""
    if place.value is None:
        return _numbers(np.array([epsilon_of(place)], np.float32))
    tensor = constant_of(place.value)
    assert tensor is not None
    return read(tensor, _numbers)


def epsilon_of(place: Place) -> float:
    """Return the number of an attribute, or its default."""
    assert place.node is not None
    attribute = place.node.attributes.get(place.attribute)
    return EPSILONS.get(operator_name(place.node), _EPSILON) if attribute is None else attribute.as_float()


def _numbers(array: np.ndarray) -> Numbers:
    """Return the numbers of an array, in blocks, by the bits of their exponents."""
    flat, counts = np.ravel(array).view(np.uint32), np.zeros(_EXPONENTS, np.int64)
    largest, least = 0, int(_INFINITE)
    for at in range(0, flat.size, _BLOCK):
        bits = flat[at : at + _BLOCK] & _MAGNITUDE
        counts += np.bincount(bits >> _FRACTION, minlength=_EXPONENTS)
        counts[0] -= bits.size - np.count_nonzero(bits)
        before = bits - _ONE  # zero becomes the largest of all
        least = min(least, int(before.min()) + 1)
        largest = max(largest, int(np.where(bits < _INFINITE, bits, 0).max()))
    filled = np.flatnonzero(counts[:-1])  # the last one is of infinities
    if not filled.size:
        return Numbers(0.0, np.inf, 0, (), flat.size)
    first, last = int(filled[0]), int(filled[-1])
    smallest, most = (float(np.uint32(each).view(np.float32)) for each in (least, largest))
    return Numbers(most, smallest, first - _OFFSET, tuple(counts[first : last + 1].tolist()), flat.size)


_BLOCK = 1 << 17  # elements that are looked at together: they stay in the processor's cache
_MAGNITUDE, _INFINITE, _ONE, _FRACTION = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(1), np.uint32(23)
_OFFSET = 127  # of the exponent in the bits; numbers below the normal ones count with the least exponent
_EXPONENTS = 256
