"""A rule gets what its signature names."""

from __future__ import annotations

import functools
import inspect

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff import registered
from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import RULES, Rule
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from tests.autodiff.graph_text import graph
from tests.support import needs_onnx


def node(body: str, *grads: str | None) -> NodeGradient:
    """The only node of a model; the names of gradients stand for values of the graph."""
    inputs = "float[3] x, float[3] a, float[3] b, float[3] g0, float[3] g1"
    model = ir.from_proto(onnx.parser.parse_model(graph(inputs, body, outputs="float[3] y")))
    propagate_types(model)
    values = {value.name: value for value in model.graph.inputs}
    cotangents = [None if name is None else values[name] for name in grads or ("g0",)]
    return NodeGradient(model.graph[0], GraphBuilder(model), cotangents, lambda _: True, backward=None)


def names(*expressions) -> list[str | None]:
    return [None if expression is None else expression.name for expression in expressions]


@pytest.mark.parametrize(
    ("rule", "body", "want"),
    [
        (lambda g: [g.name], "y = Relu(x)", ["g0"]),
        (lambda g, x: [g.name, x.name], "y = Relu(x)", ["g0", "x"]),
        (lambda g, x, a: names(x, a), "y = Mul(x, a)", ["x", "a"]),
        (lambda g, *rest: names(*rest), "y = Sum(x, a, b)", ["x", "a", "b"]),
        (lambda g, x, *rest: names(*rest), "y = Sum(x, a, b)", ["a", "b"]),
        (lambda g, x, low=None, high=None: names(low, high), "y = Clip(x, , b)", [None, "b"]),
        (lambda g, x, low=None, high=None: names(low, high), "y = Clip(x)", [None, None]),
        (lambda g, *, y: names(y), "y = Relu(x)", ["y"]),
        (lambda g, *, node: [node.op_type, len(node.inputs)], "y = Mul(x, a)", ["Mul", 2]),
        (lambda g, *, alpha=1.0: [alpha], "y = Elu <alpha = 0.5> (x)", [0.5]),
        (lambda g, *, alpha=1.0: [alpha], "y = Elu (x)", [1.0]),
        (lambda g, *, approximate="none": [approximate], 'y = Gelu <approximate = "tanh"> (x)', ["tanh"]),
        (lambda: [None], "y = Relu(x)", [None]),
    ],
)
def test_a_rule_gets_what_its_signature_names(rule, body, want):
    seen = []
    Rule.of(_recording(rule, seen))(node(body))
    assert seen == want


def _recording(rule, seen: list):
    """The rule with the same signature, its result kept in `seen` and no gradient returned."""

    @functools.wraps(rule)
    def wrapped(*arguments, **keywords):
        seen.extend(rule(*arguments, **keywords))

    return wrapped


def test_the_gradients_of_all_outputs():
    seen = []
    Rule.of(_recording(lambda gs: names(*gs), seen))(node("y, z = TopK(x, a)", None, "g1"))
    assert seen == [None, "g1"]


@pytest.mark.parametrize(
    ("rule", "body", "grads", "problem"),
    [
        (lambda g, x, low: None, "[n] y = Clip(x)", ["g0"], "input 1 is missing"),
        (lambda g, x, low: None, "[n] y = Clip(x, , b)", ["g0"], "input 1 is missing"),
        (lambda g, *, axis: None, "[n] y = Relu(x)", ["g0"], "its attribute 'axis' is missing"),
        (lambda g: None, "[n] y, z = TopK(x, a)", [None, "g1"], "its first output has no gradient"),
    ],
)
def test_what_is_missing_is_named_with_the_node(rule, body, grads, problem):
    with pytest.raises(ModelError, match=rf"cannot differentiate node 'n' \(\w+, opset 21\): {problem}"):
        Rule.of(rule)(node(body, *grads))


def test_the_first_parameter_is_the_gradient():
    with pytest.raises(TypeError, match="must be g or gs, got x"):
        Rule.of(lambda x, g: g)


@pytest.mark.parametrize(
    ("rule", "count"),
    [(lambda g: g, 1), (lambda g: (g, g), 2), (lambda g: [None, lambda: g], 2), (lambda g, x, a, b=None: (g, g, g), 3)],
)
def test_gradients_come_as_one_or_several(rule, count):
    assert len(Rule.of(rule)(node("y = Mul(x, a)"))) == count


def test_more_gradients_than_inputs_are_an_error():
    with pytest.raises(TypeError, match="3 gradients for 2 inputs"):
        Rule.of(lambda g: (g, g, g))(node("y = Mul(x, a)"))


@functools.cache
def schemas_by_operator() -> dict[str, list[onnx.defs.OpSchema]]:
    operator: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            operator.setdefault(schema.name, []).append(schema)
    return operator


def schemas(op_type: str) -> list[onnx.defs.OpSchema]:
    return schemas_by_operator().get(op_type, [])


# ONNX Runtime has some operators in ONNX's domain that ONNX does not know.
STANDARD = [op_type for domain, op_type in registered() if not domain and schemas(op_type)]


@pytest.mark.parametrize("op_type", STANDARD)
def test_a_rule_names_no_more_inputs_than_its_operator_has(op_type):
    rule = RULES["", op_type]
    assert len(rule.required) <= max(schema.max_input for schema in schemas(op_type))
    required = max(schema.min_input for schema in schemas(op_type))
    assert sum(rule.required) <= required, "an input that may be left out needs the default None"


WITH_ATTRIBUTES = [op_type for op_type in STANDARD if {*RULES["", op_type].keywords} - {"y", "node"}]
NEWER = {"SpaceToDepth": needs_onnx("1.23", "its mode came with opset 28")}


@pytest.mark.parametrize(
    "op_type", [pytest.param(operator, marks=NEWER.get(operator, ())) for operator in WITH_ATTRIBUTES]
)
def test_the_attributes_of_a_rule_have_the_defaults_of_its_operators(op_type):
    rule = RULES["", op_type]
    sharing = [other for other in STANDARD if RULES["", other].function is rule.function]  # Scatter has no reduction
    known = sorted((s for other in sharing for s in schemas(other)), key=lambda schema: schema.since_version)
    for name, default in rule.keywords.items():
        if name in ("y", "node"):
            continue
        newest = [schema.attributes[name] for schema in known if name in schema.attributes][-1]
        if newest.required:
            assert default is inspect.Parameter.empty, name
        elif newest.default_value.name:
            value = onnx.helper.get_attribute_value(newest.default_value)
            value = value.decode() if isinstance(value, bytes) else value
            assert list(default) == value if isinstance(value, list) else default == pytest.approx(value), name
        else:
            assert default is None, name
