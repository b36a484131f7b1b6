"""Small graphs as ONNX text, and the check of element types that tests of gradient rules share."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from amp_transpiler.graph.verifier import faults
from tests.autodiff.gradient_check import gradient_model

Shape = Sequence[int | str]


def tensor(shape: Shape, element: str = "float") -> str:
    """Return a type in ONNX text; names in the shape are symbolic dimensions."""
    return f"{element}[{','.join(map(str, shape))}]" if len(shape) else element


def graph(inputs: str, body: str, *, outputs: str = "float y", constants: str = "", opset: int = 21) -> str:
    """Return a model in ONNX text."""
    held = f" <{constants}>" if constants else ""
    return f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}){held} {{ {body} }}'


def numbers(name: str, values: Sequence[int]) -> str:
    """Return an int64 constant in ONNX text."""
    return f"int64[{len(values)}] {name} = {{{', '.join(map(str, values))}}}"


def assert_low_is_well_typed(text: str, elements: Sequence[str] = ("float16", "bfloat16")) -> None:
    """Assert that the gradients of the model in each of these element types have the type of their input."""
    for element in elements:
        low = text.replace("float[", f"{element}[").replace("float ", f"{element} ")
        backward, names = gradient_model(onnx.parser.parse_model(low))
        assert names
        assert list(faults(ir.from_proto(backward))) == []
        types = {v.name: v.type.tensor_type.elem_type for v in [*backward.graph.input, *backward.graph.output]}
        for name in names:
            assert types[f"grad_{name}"] == types[name]
