"""RAF's rules: each operator belongs to a family (always, infer, never, ...); the user's casting rules go first."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

import onnx_ir as ir

from amp_transpiler.errors import OptionError, visible
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat, dtype_name
from amp_transpiler.graph.regions import is_kept
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import signature, type_string
from amp_transpiler.phrases import counted, first_few
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm, is_float32, touches_float32
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules, State, listed
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.raf.casting_rules import CastingRule, RuleInput, find_rule, low_inputs
from amp_transpiler.systems.raf.families import FAMILIES, Family

__all__ = ["RafRules"]

_ANY_VERSION = 2**31 - 1
_MOST_CONCATENATED = 5  # RAF concatenates more inputs than that in float32
_UNASKED = {"always": "raf-always", "never": "raf-never", "none": "raf-none"}  # families that look at no input


@dataclasses.dataclass(frozen=True, eq=False)
class RafRules(Rules):
    """The rules of RAF's autocast: by operator, and by the precision of its inputs. Constants count as float32.

    Args:
        low: the low format.
        lists: the user's own lists, which win over everything else. Paddle's default lists are not looked at.
        source_opsets: domain -> its version in the source program.
    """

    low: LowFormat
    lists: UserLists
    source_opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    low_inputs_of_norms: ClassVar[frozenset[int] | None] = frozenset({0})

    def with_source_opsets(self, opsets: Mapping[str, int]) -> RafRules:
        """Return rules that choose among the versions of a casting rule by the source program's opsets."""
        return dataclasses.replace(self, source_opsets=opsets)

    def begin(self, model: ir.Model, *, guarded: bool = False) -> RafRules:
        """Refuse, as RAF does, a program with operators of unknown domains that have no casting rule.

        Raises:
            OptionError: (a ValueError) names the operators, each with its number of nodes.
        """
        # A program that was not prepared has the versions that it came with.
        rules = self if self.source_opsets else self.with_source_opsets(dict(model.graph.opset_imports))
        decided = (node for node in all_nodes(model) if not is_kept(node, guarded=guarded))
        lacking = collections.Counter(operator_name(n) for n in decided if rules._lacks_rule(n))  # noqa: SLF001 - its own class
        if lacking:
            named = first_few([f"{visible(name, 40)} ({counted(n, 'node')})" for name, n in sorted(lacking.items())])
            first = visible(min(lacking), 40)
            domain, _, op_type = first.rpartition("::")
            raise OptionError(
                f"no casting rule for {named}: every operator that works on float32 needs one; give "
                f'@amp.casting_rule("{op_type}", domain="{domain}") or amp.CustomTypeHint, or keep it float32: --black '
                f"{first}"
            )
        return rules

    def may_fold(self, norm: ir.Node, producer: ir.Node) -> bool:
        """Whether, besides, the user has no casting rule for either operator."""
        return super().may_fold(norm, producer) and not (self._user_rule(norm) or self._user_rule(producer))

    def can_lower(self, node: ir.Node) -> bool:
        """Whether the operator's family is not `never`, or the user has a rule for it."""
        family = FAMILIES.get(operator_name(node))
        never = family is not None and family.kind in ("never", "none")
        return super().can_lower(node) and (not never or self._user_rule(node) is not None)

    def form_without_schema(self, node: ir.Node) -> LowForm | None:
        """Return all float32 inputs and outputs, if the user has a rule for the operator or lists it as white."""
        if is_standard(node):
            return None
        if self._user_rule(node) is None and operator_name(node) not in self.lists.custom_white_list:
            return None
        return LowForm(_float32_slots(node.inputs), _float32_slots(node.outputs))

    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide by the user's lists, then by the user's rule, then by RAF's family of the operator.

        Raises:
            OptionError: (a ValueError) the user's rule gives impossible hints, or lowers a value of unknown type.
        """
        decision = listed(node, form, self.lists)
        if decision is None and (rule := self._user_rule(node)) is not None:
            decision = self._by_rule(node, rule, form, state)
        if decision is None:
            return self._by_family(node, form, state)
        if decision.precision == "low" and (untyped := [v.name for v in node.outputs if v.name and v.type is None]):
            raise OptionError(
                f"{operator_name(node)}, node '{node.name}', would run in lower precision, but the type of its result "
                f"'{untyped[0]}' is not known: expected the model to declare it; add it to value_info"
            )
        return decision

    def _by_family(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        family = FAMILIES.get(operator_name(node))
        if family is None:
            return Decision("high", Reason("raf-unknown", {"operator": operator_name(node)}))
        if family.kind == "data":
            return _data_alone(node, family, form, state)
        is_low, reason = _voted(node, family, form, state)
        return Decision("low", reason, form) if is_low else Decision("high", reason)

    def _lacks_rule(self, node: ir.Node) -> bool:
        if is_standard(node) or not touches_float32(node) or any(True for _ in bodies(node)):
            return False
        if operator_name(node) in self.lists.custom_black_list | self.lists.custom_white_list:
            return False
        known = signature(node.domain, node.op_type, _ANY_VERSION) is not None
        return not known and self._user_rule(node) is None

    def _user_rule(self, node: ir.Node) -> CastingRule | None:
        return find_rule(node.domain, node.op_type, self._opset(node))

    def _opset(self, node: ir.Node) -> int:
        """Return the version of the node's domain in the source program, which its author wrote the rule for."""
        imports = self.source_opsets
        if is_standard(node):
            return imports.get("", imports.get("ai.onnx", 1))
        return imports.get(node.domain, 1)

    def _by_rule(self, node: ir.Node, rule: CastingRule, form: LowForm, state: State) -> Decision:
        wanted = low_inputs(node, rule, [self._shown(v, state) for v in node.inputs], self.low) & form.inputs
        name = operator_name(node)
        if not wanted:
            return Decision("high", Reason("casting-rule-none", {"operator": name}))
        if wanted == form.inputs:
            return Decision("low", Reason("casting-rule-low", {"operator": name}), form)
        chosen = self._form_of(node, form, wanted, state)
        inputs = ", ".join(map(str, sorted(wanted)))
        if chosen is None:
            possible = ", ".join(map(str, sorted(form.inputs)))
            raise OptionError(
                f"the casting rule for {name}, asked about node '{node.name}', wants inputs {inputs} {self.low.name} "
                f"and the others float32: expected hints that some form of the operator has, such as {self.low.name} "
                f"for inputs {possible}; return the same dtype for inputs that share a type"
            )
        return Decision("low", Reason("casting-rule-inputs", {"operator": name, "inputs": inputs}), chosen)

    def _form_of(self, node: ir.Node, form: LowForm, wanted: frozenset[int], state: State) -> LowForm | None:
        """Return the form in which just these inputs are low. Without a schema only the rule decides."""
        if signature(node.domain, node.op_type, self._opset(node)) is None:
            return LowForm(wanted, form.outputs if wanted == form.inputs else frozenset())
        return state.form_with(node, wanted)

    def _shown(self, value: ir.Value | None, state: State) -> RuleInput | None:
        if value is None:
            return None
        shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
        is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
        dtype = dtype_name(value.dtype) if is_tensor else type_string(value.type) or "unknown"
        if is_float32(value) and _arrives_low(value, state):
            dtype = self.low.name
        return RuleInput(str(value.name), dtype, shape, constant_of(value) is not None)


def _float32_slots(values: Iterable[ir.Value | None]) -> frozenset[int]:
    return frozenset(index for index, value in enumerate(values) if is_float32(value))


def _arrives_low(value: ir.Value, state: State) -> bool:
    """Whether a float32 value comes from a low one, directly or through the user's own casts to float32."""
    origin: ir.Value | None = value
    while is_float32(origin):
        node = origin.producer()
        if node is None or not is_standard(node) or node.op_type != "Cast":
            break
        origin = node.inputs[0]
    return origin is not None and state.is_low(origin)


def _voted(node: ir.Node, family: Family, form: LowForm, state: State) -> tuple[bool, Reason]:
    """Return whether the node is low, and why."""
    values: dict[str, object] = {"operator": operator_name(node), "names": family.reason}
    if family.kind in _UNASKED:
        return family.kind == "always", Reason(_UNASKED[family.kind], values)
    voters = sorted(form.inputs)[: family.votes]
    low = sum(_arrives_low(value, state) for i in voters if (value := node.inputs[i]) is not None)
    high = len(voters) - low
    votes = {**values, "low": low, "inputs": len(voters)}
    if not voters:
        return False, Reason("raf-no-input", values)
    if family.kind == "either":
        return low > 0, Reason("raf-either", votes)
    if family.kind == "follow":
        return low > 0, Reason("raf-follow-low", values) if low else Reason("raf-follow-high", values)
    if family.kind == "concat":
        if len(node.inputs) > _MOST_CONCATENATED:
            return False, Reason("raf-concat-long", {**values, "most": _MOST_CONCATENATED})
        return low > high, Reason("raf-concat", votes)
    if len([value for value in node.outputs if value.name]) > 1:
        return False, Reason("raf-outputs", values)
    return low >= high, Reason("raf-infer", votes)  # a tie goes to lower precision, as in RAF


def _data_alone(node: ir.Node, family: Family, form: LowForm, state: State) -> Decision:
    """Decide about a normalisation: its data are always low, its parameters and statistics unchanged."""
    values: dict[str, object] = {"operator": operator_name(node), "names": family.reason}
    data = frozenset((0,))
    chosen = form if form.inputs == data else state.form_with(node, data)
    if chosen is None:
        return Decision("high", Reason("raf-data-no-form", values))
    return Decision("low", Reason("raf-data", values), chosen)
