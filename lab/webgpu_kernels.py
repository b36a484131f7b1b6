#!/usr/bin/env python3
"""Make the table of the kernels that ONNX Runtime's WebGPU provider has, by asking it.

    python lab/webgpu_kernels.py            # writes amp_transpiler/targets/data/webgpu.json; some minutes

The packages onnxruntime-web and onnxruntime-node hold one provider, compiled, and list no kernels. So each float
operator, at each version of its schema, in float32 and float16, becomes a model of one node; onnxruntime-node opens it
and says where the node goes (`scripts/webgpu_oracle.py`). What the provider takes is a row, in the form of
`releases.json`: versions, then the types of each type parameter. A node that ONNX Runtime refuses, such as one whose
attributes made up here do not fit, is no row; the program names them. Schemas are those of the installed packages.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

import onnx
from onnx import TensorProto, helper

from kernel_tables import Row, Sets, joined, row_text
from webgpu_oracle import RELEASE, CannotRun, NotInstallable, Oracle, install

TABLE = pathlib.Path(__file__).parents[1] / "amp_transpiler" / "targets" / "data" / "webgpu.json"
FLOATS = ("float32", "float16")
OTHERS = ("int64", "int32", "bool", "uint8", "int8")
ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bool": TensorProto.BOOL}
ELEMENTS |= {name: getattr(TensorProto, name.upper()) for name in ("int64", "int32", "uint8", "int8")}
DOMAINS = {"": "ai.onnx", "com.microsoft": "com.microsoft"}
LAST = 26  # the newest opset of ONNX's own domain that the release reads
SKIPPED = frozenset({"If", "Loop", "Scan", "Constant", "RandomNormal", "RandomUniform"})
ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "AveragePool": {"kernel_shape": [2, 2]},
    "MaxPool": {"kernel_shape": [2, 2]},
    "LpPool": {"kernel_shape": [2, 2]},
    "Einsum": {"equation": "ij,jk->ik"},
    "Cast": {"to": TensorProto.FLOAT},
    "DepthToSpace": {"blocksize": 2},
    "SpaceToDepth": {"blocksize": 2},
}
NEEDED: Mapping[str, Sequence[str]] = {"Resize": ("scales",)}  # inputs that are optional, and needed all the same
WEB = "WebGpuExecutionProvider"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="OPERATOR", help="print the rows of these, and write nothing")
    only = parser.parse_args().only
    rows: dict[str, list[Row]] = collections.defaultdict(list)
    refused: set[str] = set()
    try:
        with Oracle(install(), "disabled") as oracle, tempfile.TemporaryDirectory(prefix="webgpu-kernels-") as scratch:
            place = pathlib.Path(scratch) / "node.onnx"
            for name, span, schema in schemas(only):
                for types in bindings(schema):
                    taken = is_taken(oracle, place, schema, span[0], types)
                    if taken is None:
                        refused.add(name)
                    elif taken:
                        rows[name].append(
                            (span, {parameter: frozenset((type_,)) for parameter, type_ in types.items()})
                        )
    except NotInstallable as error:
        sys.exit(f"webgpu_kernels.py: {error}")
    sets = Sets()
    table = {name: ";".join(row_text(row, sets) for row in merged(rows[name])) for name in sorted(rows)}
    print(f"refused in some form: {', '.join(sorted(refused))}", file=sys.stderr)
    if only is not None:
        print(json.dumps(table, indent=1), sets.as_dict())
        return 0
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(text)}" for name, text in table.items())
    head = json.dumps({"release": ".".join(RELEASE.split(".")[:2]), "types": sets.as_dict()}, separators=(",", ":"))
    TABLE.write_text(f'{head[:-1]},\n"kernels":{{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"{TABLE}: {len(table)} operators")
    return 0


def merged(rows: Sequence[Row]) -> list[Row]:
    """Join rows of the same versions, and those of versions that follow each other with the same types."""
    spans: list[Row] = []
    for (first, last), types in sorted(joined(list(rows)), key=lambda row: (sorted(map(str, row[1].items())), row[0])):
        if spans and spans[-1][1] == types and spans[-1][0][1] + 1 == first:
            spans[-1] = ((spans[-1][0][0], last), types)
        else:
            spans.append(((first, last), types))
    return sorted(spans, key=lambda row: (row[0], sorted(map(str, row[1].items()))))


def schemas(only: Sequence[str] | None) -> Iterator[tuple[str, tuple[int, int], Any]]:
    """Yield each version of each operator's schema that has a float16 form: name, versions that it serves, schema."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    by_name: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.since_version <= LAST:
            by_name[schema.domain, schema.name].append(schema)
    for schema in state.get_all_operator_schema():
        if (schema.domain, schema.name) not in by_name and schema.domain in DOMAINS:
            by_name[schema.domain, schema.name].append(schema)
    for (domain, op_type), versions in sorted(by_name.items()):
        if op_type in SKIPPED or (only is not None and op_type not in only):
            continue
        versions.sort(key=lambda schema: schema.since_version)
        ends = [*(schema.since_version - 1 for schema in versions[1:]), LAST if not domain else 1]
        for schema, end in zip(versions, ends, strict=True):
            if not schema.deprecated and any("tensor(float16)" in allowed_of(c) for c in constraints_of(schema)):
                yield f"{DOMAINS[domain]}::{op_type}", (schema.since_version, end), schema


def constraints_of(schema: Any) -> Sequence[Any]:
    return list(schema.type_constraints)


def allowed_of(constraint: Any) -> Sequence[str]:
    return list(getattr(constraint, "allowed_type_strs", None) or constraint.allowed_type_strs)


def name_of(constraint: Any) -> str:
    return str(constraint.type_param_str)


def bindings(schema: Any) -> Iterator[dict[str, str]]:
    """Yield type parameter -> type: each float one in both formats, each other one in two of its types."""
    used = {
        str(formal.type_str if hasattr(formal, "type_str") else formal.typeStr)
        for formal in [*schema.inputs, *schema.outputs]
    }
    choices: dict[str, list[str]] = {}
    for constraint in constraints_of(schema):
        if name_of(constraint) not in used:
            continue
        texts = [text for text in allowed_of(constraint) if text.startswith("tensor(")]
        allowed = {"float32" if text == "tensor(float)" else text[len("tensor(") : -1] for text in texts}
        if "float16" in allowed:
            choices[name_of(constraint)] = [type_ for type_ in FLOATS if type_ in allowed]
        else:
            choices[name_of(constraint)] = [type_ for type_ in ("float32", *OTHERS) if type_ in allowed][:2]
    if all(choices.values()):
        for types in itertools.product(*choices.values()):
            yield dict(zip(choices, types, strict=True))


def is_taken(oracle: Oracle, place: pathlib.Path, schema: Any, version: int, types: Mapping[str, str]) -> bool | None:
    """Return whether the provider has a kernel for an operator; None where ONNX Runtime refuses the model.

    An operator that is written out as a function becomes several nodes, of which each may have one.
    """
    onnx.save(model_of(schema, version, types), place)
    try:
        placed = oracle.placement(place)
    except CannotRun:
        return None
    return set(placed) == {WEB} and placed[WEB].total == 1


def model_of(schema: Any, version: int, types: Mapping[str, str]) -> onnx.ModelProto:
    inputs: list[onnx.ValueInfoProto | None] = []
    for formal in schema.inputs:
        option = str(formal.option).rpartition(".")[2]
        if option == "Optional" and formal.name not in NEEDED.get(schema.name, ()):
            inputs.append(None)
            continue
        parameter = str(formal.type_str if hasattr(formal, "type_str") else formal.typeStr)
        element = ELEMENTS[types[parameter]] if parameter in types else fixed_element(parameter)
        inputs.append(helper.make_tensor_value_info(str(formal.name), element, None))
    node = helper.make_node(
        schema.name,
        ["" if value is None else value.name for value in inputs],
        ["result"],
        domain=schema.domain,
        **attributes_of(schema, types),
    )
    while node.input and not node.input[-1]:
        del node.input[-1]
    result = onnx.ValueInfoProto(name="result")
    formal = schema.outputs[0]
    parameter = str(formal.type_str if hasattr(formal, "type_str") else formal.typeStr)
    result.type.tensor_type.elem_type = ELEMENTS[types[parameter]] if parameter in types else fixed_element(parameter)
    graph = helper.make_graph([node], "kernel", [value for value in inputs if value is not None], [result])
    opset = version if not schema.domain else LAST
    opsets = [
        helper.make_opsetid("", max(opset, 1)),
        *([helper.make_opsetid(schema.domain, 1)] if schema.domain else []),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def fixed_element(type_: str) -> int:
    """Return the element type of a formal without a parameter, such as `tensor(int64)`."""
    name = type_[len("tensor(") : -1] if type_.startswith("tensor(") else "float32"
    return int(ELEMENTS.get("float32" if name == "float" else name, TensorProto.INT64))


def attributes_of(schema: Any, types: Mapping[str, str]) -> dict[str, Any]:
    """Return values for the attributes that an operator must have."""
    values = dict(ATTRIBUTES.get(schema.name, {}))
    if schema.name == "Cast":
        values["to"] = ELEMENTS[types["T2"]]
    plain = {"INT": 1, "INTS": [1], "FLOAT": 1.0, "STRING": "NOTSET", "FLOATS": [1.0]}
    for name, attribute in schema.attributes.items():
        kind = str(attribute.type).rpartition(".")[2]
        if attribute.required and name not in values and kind in plain:
            values[name] = plain[kind]
    return values


if __name__ == "__main__":
    sys.exit(main())
