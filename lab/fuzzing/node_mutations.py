"""Mutations of nodes: their operator, place, inputs, outputs and attributes."""

from __future__ import annotations

import random
from typing import Any

import onnx
from onnx import AttributeProto

from fuzzing.mutant import Mutant, NotApplicable, bodies, pick, pick_node, pick_scope, value_names

_OPERATORS = (
    "Add Mul MatMul Relu Softmax Identity Cast CastLike Reshape Transpose Gather Concat Split Slice Conv Resize Where"
    " Pow ReduceMean TopK Shape Size Constant ConstantOfShape If Loop Scan LSTM GRU BatchNormalization"
    " LayerNormalization Dropout Clip Range Expand NonZero SequenceAt SequenceConstruct Optional"
    " OptionalGetElement QuantizeLinear DequantizeLinear Einsum Max Sum RandomNormal RandomUniformLike Upsample Scatter"
    " SimplifiedLayerNormalization SplitToSequence SequenceMap StringConcat DFT Bernoulli Swish"
    " Attention RotaryEmbedding DeformConv NoSuchOperator"
).split()
_CONTRIB = "FusedMatMul BiasGelu Attention SkipLayerNormalization MatMulNBits GroupQueryAttention NoSuchContrib".split()
_DOMAINS = [
    "",
    "ai.onnx",
    "com.microsoft",
    "ai.onnx.ml",
    "local",
    "the.domain",
    "ai.onnx.training",
    "com.ms.nhwc",
]
_NAMES = [
    "axis",
    "axes",
    "to",
    "alpha",
    "epsilon",
    "value",
    "perm",
    "body",
    "mode",
    "kernel_shape",
    "saturate",
    "dtype",
]
_INTEGERS = [0, 1, -1, 2, 7, 10, 16, 17, 23, 99, -(2**31), 2**31, 2**63 - 1, -(2**63)]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-8, 70000.0, 3.4e38, float("inf"), float("-inf"), float("nan")]
_KINDS = [*range(15), 16]


def swap_operator(mutant: Mutant, random_: random.Random) -> None:
    """Turn a node into another operator, its inputs and attributes kept."""
    node = pick_node(mutant, random_)
    contrib = random_.random() < 0.15
    node.op_type = pick(random_, _CONTRIB if contrib else _OPERATORS)
    if contrib or random_.random() < 0.5:
        node.domain = "com.microsoft" if contrib else ""


def swap_with_another(mutant: Mutant, random_: random.Random) -> None:
    """Exchange the operators of two nodes."""
    nodes = pick_scope(mutant, random_).node
    first, second = pick(random_, nodes), pick(random_, nodes)
    first.op_type, second.op_type = second.op_type, first.op_type
    first.domain, second.domain = second.domain, first.domain


def change_domain(mutant: Mutant, random_: random.Random) -> None:
    pick_node(mutant, random_).domain = pick(random_, _DOMAINS)


def no_operator(mutant: Mutant, random_: random.Random) -> None:
    pick_node(mutant, random_).ClearField("op_type")


def drop_node(mutant: Mutant, random_: random.Random) -> None:
    nodes = pick_scope(mutant, random_).node
    del nodes[random_.randrange(len(nodes))]


def bypass_node(mutant: Mutant, random_: random.Random) -> None:
    """Drop a node, and let its readers read its first input."""
    nodes = pick_scope(mutant, random_).node
    node = nodes.pop(random_.randrange(len(nodes)))
    if not node.input or not node.output:
        raise NotApplicable
    for other in nodes:
        other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]


def duplicate_node(mutant: Mutant, random_: random.Random) -> None:
    """Copy a node; its outputs get new names, or are computed twice."""
    nodes = pick_scope(mutant, random_).node
    copy = nodes.add()
    copy.CopyFrom(pick(random_, nodes))
    if random_.random() < 0.7:
        copy.output[:] = [f"{name}_copy" for name in copy.output]


def many_nodes(mutant: Mutant, random_: random.Random) -> None:
    """Make a chain of a few hundred nodes out of one."""
    nodes = pick_scope(mutant, random_).node
    node = pick(random_, nodes)
    if not node.input or not node.output or any(bodies(node)):
        raise NotApplicable
    for step in range(random_.choice([20, 100, 300])):
        copy = nodes.add()
        copy.CopyFrom(node)
        copy.input[0] = f"{node.output[0]}_{step - 1}" if step else node.output[0]
        copy.output[:] = [f"{name}_{step}" for name in node.output]


def reorder(mutant: Mutant, random_: random.Random) -> None:
    nodes = pick_scope(mutant, random_).node
    order = list(nodes)
    random_.shuffle(order)
    del nodes[:]
    nodes.extend(order)


def move_to_another_scope(mutant: Mutant, random_: random.Random) -> None:
    """Move a node from its scope to another, so that it reads or hides what it should not."""
    nodes = pick_scope(mutant, random_).node
    target = pick_scope(mutant, random_).node
    node = onnx.NodeProto()
    node.CopyFrom(pick(random_, nodes))
    target.insert(random_.randrange(len(target) + 1), node)


def rewire_input(mutant: Mutant, random_: random.Random) -> None:
    """Let a node read any value of its scope, its own result included."""
    scope = pick_scope(mutant, random_)
    node = pick(random_, scope.node)
    if not node.input:
        raise NotApplicable
    node.input[random_.randrange(len(node.input))] = pick(random_, value_names(scope))


def read_undefined(mutant: Mutant, random_: random.Random) -> None:
    node = pick_node(mutant, random_)
    if not node.input:
        raise NotApplicable
    node.input[random_.randrange(len(node.input))] = "nothing_computes_this"


def cut_input(mutant: Mutant, random_: random.Random) -> None:
    """Leave an input out: empty, or removed with all that follow it."""
    node = pick_node(mutant, random_)
    if not node.input:
        raise NotApplicable
    index = random_.randrange(len(node.input))
    if random_.random() < 0.5:
        node.input[index] = ""
    else:
        del node.input[index:]


def add_inputs(mutant: Mutant, random_: random.Random) -> None:
    scope = pick_scope(mutant, random_)
    node = pick(random_, scope.node)
    names = [*value_names(scope), ""]
    node.input.extend(pick(random_, names) for _ in range(random_.choice([1, 1, 2, 5, 40])))


def change_outputs(mutant: Mutant, random_: random.Random) -> None:
    """Add an output, cut one, leave one without a name, or name it after another value."""
    scope = pick_scope(mutant, random_)
    node = pick(random_, scope.node)
    way = random_.randrange(4)
    if way == 0 or not node.output:
        node.output.extend(f"extra_{index}" for index in range(random_.choice([1, 2, 9])))
    elif way == 1:
        del node.output[random_.randrange(len(node.output)) :]
    else:
        names = value_names(scope)
        node.output[random_.randrange(len(node.output))] = "" if way == 2 else pick(random_, names)


def rename_value(mutant: Mutant, random_: random.Random) -> None:
    """Rename one value where it is made, but not where it is read, or everywhere to another's name."""
    scope = pick_scope(mutant, random_)
    names = value_names(scope)
    old, new = pick(random_, names), pick(random_, [*names, "renamed"])
    everywhere = random_.random() < 0.5
    for node in scope.node:
        node.output[:] = [new if name == old else name for name in node.output]
        if everywhere:
            node.input[:] = [new if name == old else name for name in node.input]


def rename_node(mutant: Mutant, random_: random.Random) -> None:
    """Give two nodes one name, or none."""
    nodes = pick_scope(mutant, random_).node
    pick(random_, nodes).name = pick(random_, [node.name for node in nodes] + ["", "same"])


def drop_attribute(mutant: Mutant, random_: random.Random) -> None:
    attributes = _node_with_attributes(mutant, random_).attribute
    del attributes[random_.randrange(len(attributes))]


def duplicate_attribute(mutant: Mutant, random_: random.Random) -> None:
    attributes = _node_with_attributes(mutant, random_).attribute
    attributes.add().CopyFrom(pick(random_, attributes))


def rename_attribute(mutant: Mutant, random_: random.Random) -> None:
    pick(random_, _node_with_attributes(mutant, random_).attribute).name = pick(random_, ["", "no_such", *_NAMES])


def add_attribute(mutant: Mutant, random_: random.Random) -> None:
    """Add an attribute with a usual name and any value."""
    node = pick_node(mutant, random_)
    name = pick(random_, _NAMES)
    value: Any = pick(
        random_,
        [pick(random_, _INTEGERS), pick(random_, _FLOATS), "text", [1, 2], [0.5], [pick(random_, _INTEGERS)] * 9],
    )
    node.attribute.append(onnx.helper.make_attribute(name, value))


def change_attribute_type(mutant: Mutant, random_: random.Random) -> None:
    """Change what an attribute says it is, whatever it holds."""
    attribute = pick(random_, _node_with_attributes(mutant, random_).attribute)
    if random_.random() < 0.15:
        attribute.ClearField("type")
    else:
        attribute.type = pick(random_, [kind for kind in _KINDS if kind in AttributeProto.AttributeType.values()])


def change_attribute_value(mutant: Mutant, random_: random.Random) -> None:
    """Put an extreme value into an attribute, of its own type."""
    attribute = pick(random_, _node_with_attributes(mutant, random_).attribute)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = pick(random_, _INTEGERS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = pick(random_, _FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = pick(random_, [b"", b"\xff\xfe", b"nearest", b"a" * 5000, b"bij,,->->"])
    elif kind == AttributeProto.INTS:
        _change_list(attribute.ints, _INTEGERS, random_)
    elif kind == AttributeProto.FLOATS:
        _change_list(attribute.floats, _FLOATS, random_)
    else:
        raise NotApplicable


def reference_attribute(mutant: Mutant, random_: random.Random) -> None:
    """Let an attribute refer to one of the enclosing function, mostly where there is none."""
    attribute = pick(random_, _node_with_attributes(mutant, random_).attribute)
    attribute.ref_attr_name = pick(random_, ["slope", "no_such", attribute.name])


def _node_with_attributes(mutant: Mutant, random_: random.Random) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = [node for node in pick_scope(mutant, random_).node if len(node.attribute)]
    return pick(random_, nodes)


def _change_list(values: Any, extremes: list[Any], random_: random.Random) -> None:
    way = random_.randrange(4)
    if way == 0:
        del values[:]
    elif way == 1:
        values.extend([pick(random_, extremes)] * random_.choice([1, 3, 60]))
    elif len(values):
        values[random_.randrange(len(values))] = pick(random_, extremes)
