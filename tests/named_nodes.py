"""Names of nodes in ONNX text for an `onnx` whose parser does not know them yet: those before 1.19.

A name goes through the parser as the end of the operator's, and is put in its place in what comes out.
"""

import re

import onnx
import onnx.parser

_MARK = "__named_"
_NAMED = re.compile(
    r"""\[ (?P<name> [^\[\]]*) \]                       # [name]
    (?P<outputs> \s* (?: [\w":/.]+ \s* ,? \s* )+ = \s*)  # y, z =
    (?P<op> (?:[\w.]+\.)? \w+) (?= \s* [:<(])            # com.microsoft.Gelu""",
    re.VERBOSE,
)


def knows_names():
    """Whether the installed parser reads the names of nodes."""
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[1] x) => (float[1] y) { [a] y = Neg (x) }'
    try:
        return onnx.parser.parse_model(text).graph.node[0].name == "a"
    except onnx.parser.ParseError:
        return False


def install():
    """Put a parser that knows names in the place of one that does not."""
    if not knows_names():
        for kind in ("model", "graph", "function"):
            setattr(onnx.parser, f"parse_{kind}", _naming(getattr(onnx.parser, f"parse_{kind}")))


def _naming(parse):
    def parse_with_names(text):
        names = []

        def hide(found):
            names.append(found["name"].strip())
            return f"{found['outputs']}{found['op']}{_MARK}{len(names) - 1}"

        proto = parse(_NAMED.sub(hide, text))
        for node in _nodes(proto):
            node.op_type, mark, number = node.op_type.partition(_MARK)
            if mark:
                node.name = names[int(number)]
        return proto

    return parse_with_names


def _nodes(proto):
    if isinstance(proto, onnx.ModelProto):
        yield from _nodes(proto.graph)
        for function in proto.functions:
            yield from _nodes(function)
        return
    for node in proto.node:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _nodes(graph)
