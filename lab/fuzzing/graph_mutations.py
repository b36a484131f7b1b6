"""Mutations of graphs, functions, versions and strings, and of the bytes of the file."""

from __future__ import annotations

import random

import onnx

from fuzzing.mutant import Mutant, NotApplicable, bodies, drop, graphs, pick, pick_graph, pick_scope, value_names

_VERSIONS = [-1, 0, 1, 6, 7, 9, 11, 13, 17, 18, 21, 23, 24, 25, 26, 27, 99, 2**31, 2**40, 2**63 - 1, -(2**63)]
_IR_VERSIONS = [-1, 0, 1, 2, 3, 4, 7, 8, 10, 11, 12, 13, 14, 99, 2**40]
_STRANGE = [
    "\x1b[31mred\x1b[0m",
    "\x07\x07",
    "\u202ereversed",
    "new\nline",
    "\0",
    "é" * 40,
    "n" * 20_000,
    "a/b/../c",
    "'",
    "%s{}",
]
_ENDS = [b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\xf0\x28\x8c\x28"]  # none is UTF-8

# ---- graphs ----


def drop_output(mutant: Mutant, random_: random.Random) -> None:
    drop(random_, pick_graph(mutant, random_).output)


def duplicate_output(mutant: Mutant, random_: random.Random) -> None:
    outputs = pick_graph(mutant, random_).output
    outputs.add().CopyFrom(pick(random_, outputs))


def untyped_output(mutant: Mutant, random_: random.Random) -> None:
    pick(random_, pick_graph(mutant, random_).output).ClearField("type")


def output_of_any_value(mutant: Mutant, random_: random.Random) -> None:
    """Hand out an input, an initializer, a value in between, or what nothing computes."""
    graph = pick_graph(mutant, random_)
    pick(random_, graph.output).name = pick(random_, [*value_names(graph), "nothing_computes_this", ""])


def drop_input(mutant: Mutant, random_: random.Random) -> None:
    drop(random_, pick_graph(mutant, random_).input)


def duplicate_input(mutant: Mutant, random_: random.Random) -> None:
    inputs = pick_graph(mutant, random_).input
    inputs.add().CopyFrom(pick(random_, inputs))


def change_body(mutant: Mutant, random_: random.Random) -> None:
    """Empty a body, copy another graph into it, or take it away."""
    nodes = [node for node in pick_scope(mutant, random_).node if any(bodies(node))]
    node = pick(random_, nodes)
    body = pick(random_, list(bodies(node)))
    way = random_.randrange(4)
    if way == 0:
        del body.node[:]
    elif way == 1:
        del body.output[:]
    elif way == 2:
        copy = onnx.GraphProto()
        copy.CopyFrom(pick(random_, graphs(mutant.model)))
        body.CopyFrom(copy)
    else:
        del node.attribute[:]


def nest_body(mutant: Mutant, random_: random.Random) -> None:
    """Wrap the main graph's nodes in Ifs, a few levels deep or many."""
    graph = mutant.model.graph
    if not len(graph.output):
        raise NotApplicable
    graph.initializer.append(onnx.helper.make_tensor("nest_condition", onnx.TensorProto.BOOL, [], [True]))
    original = onnx.GraphProto(node=graph.node, output=graph.output)
    for level in range(random_.choice([1, 3, 10, 25])):
        inner = onnx.GraphProto(name=f"nest_{level}")
        inner.node.extend(graph.node)
        inner.output.extend(graph.output)
        node = onnx.helper.make_node(
            "If", ["nest_condition"], [output.name for output in graph.output], f"nest_{level}"
        )
        original.name = f"other_{level}"
        node.attribute.append(onnx.helper.make_attribute("then_branch", inner))
        node.attribute.append(onnx.helper.make_attribute("else_branch", original))
        del graph.node[:]
        graph.node.append(node)


def empty_graph(mutant: Mutant, random_: random.Random) -> None:
    """Remove all nodes, all inputs or all initializers, or the graph itself."""
    graph = mutant.model.graph
    way = random_.randrange(4)
    if way == 0:
        del graph.node[:]
    elif way == 1:
        del graph.input[:]
    elif way == 2:
        del graph.initializer[:]
    else:
        mutant.model.ClearField("graph")


def rename_graph(mutant: Mutant, random_: random.Random) -> None:
    pick_graph(mutant, random_).name = random_.choice(["", "agraph", "x"])


def annotate(mutant: Mutant, random_: random.Random) -> None:
    """Add training info, quantization annotations or metadata that name what is not there."""
    way = random_.randrange(4)
    if way == 0:
        mutant.model.training_info.add().algorithm.CopyFrom(mutant.model.graph)
    elif way == 1:
        note = mutant.model.graph.quantization_annotation.add(tensor_name="no_such")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="neither")
    elif way == 2:
        for _ in range(2):  # the key twice
            mutant.model.metadata_props.add(key="key", value="\x1b[1m")
    else:
        mutant.model.graph.metadata_props.add(key="", value="amp_transpiler.regions")


# ---- functions ----


def recursive_function(mutant: Mutant, random_: random.Random) -> None:
    """Let a function call itself, or one that calls it."""
    function = pick(random_, mutant.model.functions)
    called = pick(random_, mutant.model.functions)
    function.node.add(op_type=called.name, domain=called.domain, input=list(function.input), output=["recursion"])


def function_bomb(mutant: Mutant, random_: random.Random) -> None:
    """Add functions that each call the next one twice: 2^n nodes out of n."""
    levels = random_.choice([3, 8, 30, 60])
    model = mutant.model
    if not len(model.graph.output):
        raise NotApplicable
    for level in range(levels):
        function = model.functions.add(name=f"bomb_{level}", domain="bomb", input=["a"], output=["b"])
        function.opset_import.add(domain="", version=18)
        function.opset_import.add(domain="bomb", version=1)
        last = level == levels - 1
        called, domain = ("Neg", "") if last else (f"bomb_{level + 1}", "bomb")
        function.node.add(op_type=called, domain=domain, input=["a"], output=["t"])
        function.node.add(op_type=called, domain=domain, input=["t"], output=["b"])
    model.opset_import.add(domain="bomb", version=1)
    output = model.graph.output[0].name
    model.graph.node.add(op_type="bomb_0", domain="bomb", input=[output], output=["bombed"])
    model.graph.output.add(name="bombed").type.CopyFrom(model.graph.output[0].type)


def change_function(mutant: Mutant, random_: random.Random) -> None:
    """Change a function's name, inputs, outputs, attributes or imports."""
    function = pick(random_, mutant.model.functions)
    way = random_.randrange(6)
    if way == 0:
        function.name = pick(random_, ["", "Relu", "no_such"])
    elif way == 1 and len(function.input):
        del function.input[random_.randrange(len(function.input))]
    elif way == 2 and len(function.output):
        function.output[random_.randrange(len(function.output))] = "nothing_computes_this"
    elif way == 3:
        function.attribute.append(pick(random_, ["slope", "slope", ""]))
    elif way == 4:
        del function.opset_import[:]
    else:
        function.domain = pick(random_, ["", "ai.onnx", "elsewhere"])


def duplicate_function(mutant: Mutant, random_: random.Random) -> None:
    mutant.model.functions.add().CopyFrom(pick(random_, mutant.model.functions))


def overload_function(mutant: Mutant, random_: random.Random) -> None:
    pick(random_, mutant.model.functions).overload = pick(random_, ["a", "", "\x1b"])


# ---- versions ----


def change_opset(mutant: Mutant, random_: random.Random) -> None:
    owners = [mutant.model, *mutant.model.functions]
    pick(random_, [entry for owner in owners for entry in owner.opset_import]).version = pick(random_, _VERSIONS)


def change_imports(mutant: Mutant, random_: random.Random) -> None:
    """Remove an import, add one, or import a domain twice."""
    imports = mutant.model.opset_import
    way = random_.randrange(4)
    if way == 0 and len(imports):
        del imports[random_.randrange(len(imports))]
    elif way == 1 and len(imports):
        imports.add().CopyFrom(pick(random_, imports))
    elif way == 2:
        imports.add(domain="ai.onnx", version=pick(random_, _VERSIONS))
    else:
        imports.add(domain=pick(random_, ["com.microsoft", "bomb", "x" * 999, ""]), version=1)


def change_ir_version(mutant: Mutant, random_: random.Random) -> None:
    mutant.model.ir_version = pick(random_, _IR_VERSIONS)


# ---- strings ----


def strange_name(mutant: Mutant, random_: random.Random) -> None:
    """Rename a value everywhere in its scope to something with control characters, or very long."""
    scope = pick_scope(mutant, random_)
    old, new = pick(random_, value_names(scope)), pick(random_, _STRANGE)
    for node in scope.node:
        for field in (node.input, node.output):
            field[:] = [new if name == old else name for name in field]
    if isinstance(scope, onnx.GraphProto):
        for value in (*scope.input, *scope.output, *scope.value_info, *scope.initializer):
            if value.name == old:
                value.name = new


def strange_operator(mutant: Mutant, random_: random.Random) -> None:
    """Put control characters or very long text into an operator, a node's name, its doc string or a domain."""
    node = pick(random_, pick_scope(mutant, random_).node)
    setattr(node, pick(random_, ["op_type", "name", "name", "domain", "doc_string"]), pick(random_, _STRANGE))


def not_utf8(mutant: Mutant, random_: random.Random) -> None:
    """Make a name that is not UTF-8. No message can hold it, so it is patched into the bytes."""
    scope = pick_scope(mutant, random_)
    mark, end = "NotUtf8", pick(random_, _ENDS)
    names = value_names(scope)
    way = random_.randrange(4)
    full = mark + "_" * len(end)
    if way == 0:
        pick(random_, scope.node).name = full
    elif way == 1:
        pick(random_, scope.node).doc_string = full
    elif way == 2:
        mutant.model.producer_name = full
    else:
        old = pick(random_, names)
        for node in scope.node:
            node.input[:] = [full if name == old else name for name in node.input]
            node.output[:] = [full if name == old else name for name in node.output]
    mutant.patches.append((full.encode(), mark.encode() + end))


# ---- bytes ----


def flip_bits(mutant: Mutant, random_: random.Random) -> None:
    data = bytearray(mutant.data)
    if not data:
        raise NotApplicable
    for _ in range(random_.choice([1, 1, 2, 8])):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    mutant.data = bytes(data)


def set_byte(mutant: Mutant, random_: random.Random) -> None:
    data = bytearray(mutant.data)
    if not data:
        raise NotApplicable
    data[random_.randrange(len(data))] = random_.choice([0, 1, 0x7F, 0x80, 0xFF])
    mutant.data = bytes(data)


def truncate(mutant: Mutant, random_: random.Random) -> None:
    mutant.data = mutant.data[: random_.randrange(len(mutant.data) + 1)]


def splice(mutant: Mutant, random_: random.Random) -> None:
    """Copy a piece of the file over another place, or insert it there."""
    data = mutant.data
    if len(data) < 8:
        raise NotApplicable
    start, to = random_.randrange(len(data)), random_.randrange(len(data))
    piece = data[start : start + random_.choice([1, 4, 16, 64])]
    mutant.data = data[:to] + piece + data[to + (len(piece) if random_.random() < 0.5 else 0) :]


def delete_bytes(mutant: Mutant, random_: random.Random) -> None:
    at = random_.randrange(len(mutant.data) + 1)
    mutant.data = mutant.data[:at] + mutant.data[at + random_.choice([1, 2, 16]) :]


def other_file(mutant: Mutant, random_: random.Random) -> None:
    """Replace the file by something else."""
    mutant.data = pick(random_, [b"", b"\0" * 64, b"{}", b"\x08\x07", b"PK\x03\x04" + b"\0" * 40, mutant.data + b"\0"])
