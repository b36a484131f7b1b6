"""What tests make models with, for an `onnx` before 1.19. The package itself uses none of this.

Its parser knows neither the names of nodes nor an omitted value in front of others. A name goes through the parser as
the end of the operator's, an omitted value as one of its own name; both are put in their places in what comes out. Its
`from_array` and `to_array` know neither ml_dtypes' bfloat16 nor its integers of four bits.
"""

import re

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir

_NAMED, _OMITTED = "__named_", "__omitted"
_NAMED_NODE = re.compile(
    r"""\[ (?P<name> [^\[\]]*) \]           # [name]
    (?P<outputs> [\w":/.,\s]* = \s*)        # y, z =
    (?P<op> (?:[\w.]+\.)? \w+) (?= \s* [:<(])  # com.microsoft.Gelu""",
    re.VERBOSE,
)
_FIRST_INPUT = re.compile(r"\( (?= \s* ,)", re.VERBOSE)
_UNKNOWN = {number for number in ir.DataType if number.name != "UNDEFINED" and number.numpy().kind == "V"}
_QUOTED = re.compile(r"""(?<= [,({\n] ) (?P<space> \s*) "" (?= \s* [,)=])""", re.VERBOSE)
_FIRST_OUTPUT = re.compile(r"(?<= [{)\n] ) (?P<space> [\ ]*) (?= , [\w,\s]* = \s* [\w.]+ \s* [:<(])", re.VERBOSE)


def knows_names():
    """Whether the installed parser reads the names of nodes."""
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[1] x) => (float[1] y) { [a] y = Neg (x) }'
    try:
        return onnx.parser.parse_model(text).graph.node[0].name == "a"
    except onnx.parser.ParseError:
        return False


def install():
    """Put what knows all this in the place of what does not."""
    if not knows_names():
        onnx.numpy_helper.from_array = _from_every_type(onnx.numpy_helper.from_array)
        onnx.numpy_helper.to_array = _to_every_type(onnx.numpy_helper.to_array)
        onnx.helper.np_dtype_to_tensor_dtype = lambda dtype: ir.DataType.from_numpy(np.dtype(dtype)).value
        for kind in ("model", "graph", "function"):
            setattr(onnx.parser, f"parse_{kind}", _naming(getattr(onnx.parser, f"parse_{kind}")))


def _from_every_type(from_array):
    def from_array_of_every_type(array, name=None):
        if array.dtype.kind == "V":  # a type of ml_dtypes
            return ir.serde.serialize_tensor(ir.Tensor(array, name=name))
        return from_array(array, name)

    return from_array_of_every_type


def _to_every_type(to_array):
    def to_array_of_every_type(tensor, base_dir=""):
        if tensor.data_type not in _UNKNOWN or tensor.external_data:
            return to_array(tensor, base_dir)
        return ir.serde.deserialize_tensor(tensor).numpy()

    return to_array_of_every_type


def _naming(parse):
    def parse_with_names(text):
        names = []

        def hide(match):
            names.append(match["name"].strip())
            outputs = match["outputs"].lstrip()
            first = _OMITTED if outputs.startswith(",") else ""
            return f"{first}{outputs}{match['op']}{_NAMED}{len(names) - 1}"

        text = _QUOTED.sub(rf"\g<space>{_OMITTED}", text)
        text = _FIRST_OUTPUT.sub(rf"\g<space>{_OMITTED}", _NAMED_NODE.sub(hide, text))
        proto = parse(_FIRST_INPUT.sub(f"({_OMITTED}", text))
        for node in _nodes(proto):
            node.op_type, mark, number = node.op_type.partition(_NAMED)
            if mark:
                node.name = names[int(number)]
            for values in (node.input, node.output):
                values[:] = ["" if name == _OMITTED else name for name in values]
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
