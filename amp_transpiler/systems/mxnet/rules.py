"""MXNet's rules: the list that a node is on, and which values are available in lower precision anywhere."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import runtime_schema
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules, State, completes_linear, listed
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.mxnet.lists import USE_FP32_PARAMS, Condition, MxnetLists, default_mxnet_lists

__all__ = ["MxnetRules"]


@dataclasses.dataclass(frozen=True, eq=False)
class MxnetRules(Rules):
    """The rules by which MXNet 2 converts a model. The order of independent nodes makes no difference.

    Args:
        low: the low format.
        lists: the user's own lists, which win over MXNet's.
        given_tables: the lists that replace MXNet's; None for MXNet's own in the low format.
        conditional: nodes of the program at hand that stay as written because of an attribute, with the reason.
    """

    low: LowFormat
    lists: UserLists
    given_tables: MxnetLists | None = None
    conditional: Mapping[ir.Node, Reason] = dataclasses.field(default_factory=dict, kw_only=True)
    looks_ahead: ClassVar[bool] = True

    @functools.cached_property
    def tables(self) -> MxnetLists:
        """The lists in effect."""
        return self.given_tables or default_mxnet_lists(self.low.name)

    def begin(self, model: ir.Model, *, guarded: bool = False) -> MxnetRules:  # noqa: ARG002 - the engine heeds it
        """Return rules that know which nodes of the program stay as written because of an attribute.

        Raises:
            OptionError: a node of a conditional operator has neither the attribute nor a default for it.
        """
        found_nodes: dict[ir.Node, Reason] = {}
        conditions: dict[str, list[Condition]] = {}
        for condition in self.tables.conditional:
            conditions.setdefault(condition[0], []).append(condition)
        imports = model.graph.opset_imports
        for node in all_nodes(model):
            for operator, attribute, values in conditions.get(operator_name(node), ()):
                text = _attribute_text(node, attribute, imports)
                if text is None:
                    raise OptionError(
                        f"node '{node.name}': conditional_fp32_ops asks for attribute '{attribute}' of {operator}, "
                        f"which this node does not have (it has {', '.join(node.attributes) or 'none'}) and "
                        f"{operator} has no default for; exclude nodes by name with excluded_sym_names instead"
                    )
                if any(_is_same(text, value) for value in values):
                    wish = {"operator": operator, "attribute": attribute, "setting": text}
                    found_nodes[node] = Reason("mxnet-conditional", wish)
        return dataclasses.replace(self, conditional=found_nodes)

    def may_fold(self, norm: ir.Node, producer: ir.Node) -> bool:
        """Whether, besides, no condition depends on an attribute of either node."""
        conditional = {operator for operator, _, _ in self.tables.conditional}
        return super().may_fold(norm, producer) and not conditional & {operator_name(norm), operator_name(producer)}

    def can_lower(self, node: ir.Node) -> bool:
        """Whether the operator is not on the fp32 list."""
        return super().can_lower(node) and self.tables.key_of(node) not in self.tables.fp32

    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide by the user's lists, then by MXNet's and the values that are available in lower precision."""
        if (wish := listed(node, form, self.lists)) is not None:
            return wish
        if node in self.conditional:
            return Decision("high", self.conditional[node])
        key, form = self.tables.key_of(node), _with_fp32_parameters(node, form, state)
        on_list = {"operator": key, "why": self.tables.why(key)}
        if key in self.tables.fp32:
            return Decision("high", Reason("mxnet-fp32", on_list))
        if key in self.tables.target:
            return Decision("low", Reason("mxnet-target", on_list), form)
        if completes_linear(node, state):
            return Decision("low", Reason("mxnet-bias"), form)
        values = [v for i in sorted(form.inputs) if (v := node.inputs[i]) is not None and not _is_attribute(v)]
        # With only numbers an operator of the widest list has no tensor whose type could win: it counts as neutral.
        if key in self.tables.widest and values:
            return _widest(values, form, state)
        available = next((value for value in values if state.has_low(value)), None)
        if available is not None:
            return Decision("low", Reason("mxnet-neutral", {"input": str(available.name)}), form)
        return Decision("high", Reason("mxnet-follows", on_list))


def _widest(values: list[ir.Value], form: LowForm, state: State) -> Decision:
    missing = next((value for value in values if not state.has_low(value)), None)
    if missing is not None:
        return Decision("high", Reason("mxnet-widest-high", {"input": str(missing.name)}))
    return Decision("low", Reason("mxnet-widest-low"), form)


def _with_fp32_parameters(node: ir.Node, form: LowForm, state: State) -> LowForm:
    """Return the form in which the parameters that MXNet keeps in float32 stay float32, if the target runs it."""
    keep = USE_FP32_PARAMS.get(operator_name(node))
    narrower = state.form_with(node, form.inputs.difference(keep)) if keep else None
    return narrower or form


def _is_attribute(value: ir.Value) -> bool:
    """Whether a value is a constant of one element. In MXNet that is an attribute, which cannot be cast."""
    tensor = constant_of(value)
    return tensor is not None and tensor.size == 1


def _attribute_text(node: ir.Node, name: str, imports: Mapping[str, int]) -> str | None:
    """Return an attribute of a node, or its default, as text; None if it has neither."""
    attribute = node.attributes.get(name)
    content = None if attribute is None or attribute.is_ref() else attribute.value
    if not isinstance(content, (int, float, str, tuple)):  # a tensor, a graph or nothing
        content = _default(node, name, imports)
    return None if content is None else _text(content)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_same(text: str, value: str) -> bool:
    """Whether two texts are equal, as numbers if both are."""
    try:
        return float(text) == float(value)
    except ValueError:
        return text == value


def _default(node: ir.Node, name: str, imports: Mapping[str, int]) -> object:
    """Return the default that the operator's schema has for an attribute, or None."""
    if not is_standard(node):
        formal = _runtime_attributes(node, imports.get(node.domain, 1)).get(name)
        default = onnx.AttributeProto.FromString(formal._default_value) if formal is not None else None  # noqa: SLF001 - no public name
    else:
        try:
            schema = onnx.defs.get_schema(node.op_type, imports.get("", onnx.defs.onnx_opset_version()), "")
        except onnx.defs.SchemaError:
            return None
        formal = schema.attributes.get(name)
        default = formal.default_value if formal is not None else None
    if default is None or default.type == onnx.AttributeProto.UNDEFINED:
        return None
    value: object = onnx.helper.get_attribute_value(default)
    return value


def _runtime_attributes(node: ir.Node, version: int) -> Mapping[str, Any]:
    schema = runtime_schema(node.domain, node.op_type, version)
    return {} if schema is None else schema.attributes
