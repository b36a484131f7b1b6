"""SambaNova's GraphAMP: presets for the whole program, and operators in mixed precision with any preset.

Source: SambaNova's "Compile with mixed precision (Beta)". ONNX has no matrix product with low inputs and a float32
result, so the result is rounded to low before it is cast to float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.walk import bodies, control_ports
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.table import column
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules, State, listed
from amp_transpiler.precision.user_lists import UserLists

__all__ = ["MIXED_OPS", "PRESETS", "Preset", "SambanovaRules", "find_preset", "parse_mixed_ops"]


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """One preset.

    Attributes:
        name: as `--preset` takes it.
        effect: a sentence that describes the preset, also as the reason of the nodes that it makes low.
        gemm: GEMM-like operators become low.
        others: all other operators become low.
        heeds_casts: operators behind one of the program's own conversions to float32 stay float32.
    """

    name: str
    effect: str
    gemm: bool = False
    others: bool = False
    heeds_casts: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether the preset leaves every operator as it is."""
        return not (self.gemm or self.others)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("mp0", "nothing is changed"),
        Preset("mp1", "only GEMM-like operators take inputs in lower precision", gemm=True),
        Preset("mp4", "lower precision wherever possible", gemm=True, others=True),
        Preset("default", "lower precision up to a conversion to float32", gemm=True, others=True, heeds_casts=True),
    )
}
_RESERVED = ("mp2", "mp3")  # the document's, for a later release

MIXED_OPS = {
    group: frozenset(operator for operator, mixed_group in column("sambanova").items() if mixed_group == group)
    for group in ("gemm", "softmax")
}
"""Group of `--mixed-ops` -> operators. gemm: low in, float32 out (matmul, linear). softmax: float32 in, low out."""


_MIXED_SOFTMAX = Reason("mixed-softmax")


def find_preset(name: str) -> Preset:
    """Return the preset of this name, in any case.

    Raises:
        OptionError: no preset has this name, or it is reserved.
    """
    known = ", ".join(PRESETS)
    if not isinstance(name, str):
        raise OptionError(f"preset is {name!r}: expected one of {known}")
    if name.lower() in _RESERVED:
        raise OptionError(f"preset {name!r} is reserved by SambaNova for a later release: expected one of {known}")
    if name.lower() not in PRESETS:
        raise OptionError(f"unknown preset {name!r}: expected one of {known}")
    return PRESETS[name.lower()]


def parse_mixed_ops(names: str | Collection[str]) -> frozenset[str]:
    """Return the groups of operators in mixed precision, from a collection or a text with commas or spaces.

    Raises:
        OptionError: no group has such a name.
    """
    if not isinstance(names, str) and not isinstance(names, Collection):
        raise OptionError(f"mixed_ops is {names!r}: expected a list of {' and '.join(MIXED_OPS)}")
    listed = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    groups = frozenset(str(name).strip().lower() for name in listed if str(name).strip())
    if unknown := sorted(groups - MIXED_OPS.keys()):
        raise OptionError(f"unknown mixed operators {unknown[0]!r}: expected {' or '.join(MIXED_OPS)}")
    return groups


@dataclasses.dataclass(frozen=True, eq=False)
class SambanovaRules(Rules):
    """The rules of GraphAMP.

    Args:
        preset: the preset; mp0 if the user gave only `mixed_ops`.
        mixed_ops: groups of operators in mixed precision: keys of `MIXED_OPS`.
        lists: the user's own lists.
        converted: nodes of the program at hand behind a conversion to float32, with the name of the conversion.
    """

    preset: Preset
    mixed_ops: frozenset[str]
    lists: UserLists
    converted: Mapping[ir.Node, str] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def folds(self) -> bool:
        """Whether all operators become low; the other presets keep the program's structure."""
        return self.preset.others

    def begin(self, model: ir.Model, *, guarded: bool = False) -> SambanovaRules:  # noqa: ARG002 - the engine heeds it
        """Return rules that know the nodes behind a conversion to float32, if the preset heeds conversions."""
        if not self.preset.heeds_casts:
            return self
        return dataclasses.replace(self, converted=_Conversions(model.graph).behind)

    def can_lower(self, node: ir.Node) -> bool:
        """Whether the preset lowers every operator, or GEMM-like ones and this is one."""
        gemm = (self.preset.gemm or "gemm" in self.mixed_ops) and operator_name(node) in MIXED_OPS["gemm"]
        white = operator_class(node) in self.lists.custom_white_list
        return super().can_lower(node) and (self.preset.others or gemm or white)

    def decide_without_form(self, node: ir.Node) -> Decision | None:
        """Round the result of a mixed softmax to low all the same: it is computed in float32 either way."""
        if "softmax" not in self.mixed_ops or operator_name(node) not in MIXED_OPS["softmax"]:
            return None
        if operator_class(node) in self.lists.custom_black_list:
            return None
        return Decision("high", _MIXED_SOFTMAX, rounded=frozenset(range(len(node.outputs))))

    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:  # noqa: ARG002 - only the node decides
        """Decide by the user's lists, then the mixed operators, then the preset."""
        if decision := listed(node, form, self.lists):
            return decision
        name = operator_name(node)
        if "softmax" in self.mixed_ops and name in MIXED_OPS["softmax"]:
            return Decision("high", _MIXED_SOFTMAX, rounded=form.outputs)
        if "gemm" in self.mixed_ops and name in MIXED_OPS["gemm"]:
            return Decision("low", Reason("mixed-gemm"), form)
        preset = self.preset
        if (cast := self.converted.get(node)) is not None:
            return Decision("high", Reason("after-conversion", {"cast": cast}))
        if preset.others or (preset.gemm and name in MIXED_OPS["gemm"]):
            return Decision("low", Reason("preset", {"preset": preset.name, "effect": preset.effect}), form)
        if preset.gemm:
            return Decision("high", Reason("not-gemm", {"preset": preset.name, "operator": name}))
        return Decision("high", Reason("not-mixed", {"operator": name}))


class _Conversions:
    """The nodes behind a program's own conversions of float data to float32.

    Attributes:
        behind: node -> name of the conversion whose result it reads, directly or through other nodes.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.behind: dict[ir.Node, str] = {}
        self._converted: dict[ir.Value, str] = {}  # value -> name of the conversion that it comes from
        self._data: set[ir.Value] = set()  # values that depend on more than shapes and constants
        self._graph(graph)

    def _graph(self, graph: ir.Graph) -> None:
        self._data.update(graph.inputs)
        for node in graph:
            cast = next((self._converted[value] for value in node.inputs if value in self._converted), None)
            depends = any(value in self._data for value in node.inputs)
            if any(True for _ in bodies(node)):
                self._bodies(node)
                depends = True
            elif _is_conversion(node) and depends:
                self._converted.update(dict.fromkeys(node.outputs, str(node.name)))
            elif cast is not None:
                self._converted.update(dict.fromkeys(node.outputs, cast))
                self.behind[node] = cast
            if depends and not (is_standard(node) and node.op_type in ("Shape", "Size")):
                self._data.update(node.outputs)

    def _bodies(self, node: ir.Node) -> None:
        ports = control_ports(node)
        for inward in (True, False):
            for port in ports:
                cast = next((self._converted[use.value] for use in port.uses if use.value in self._converted), None)
                if cast is not None:
                    values = (value for value in port.definitions if (value.producer() is None) == inward)
                    self._converted.update(dict.fromkeys(values, cast))
            if inward:
                for _, body in bodies(node):
                    self._graph(body)


def _is_conversion(node: ir.Node) -> bool:
    """Whether the node is the user's own cast of float data to float32.

    A cast of integers, as for a mask, does not count, nor does a cast of a single number: exporters insert those, for
    example for the scale of an attention.
    """
    source = node.inputs[0] if node.inputs else None
    if not is_standard(node) or node.op_type not in ("Cast", "CastLike") or source is None:
        return False
    is_number = source.shape is not None and all(size == 1 for size in source.shape)
    return source.dtype in FLOAT_DTYPES and node.outputs[0].dtype == ir.DataType.FLOAT and not is_number
