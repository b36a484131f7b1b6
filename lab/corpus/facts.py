"""Static facts about an ONNX model: operators, weights by type, subgraphs, and what makes it hard to convert."""

from __future__ import annotations

import collections
import hashlib
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Record = dict[str, Any]

QUANTIZED = frozenset(
    """
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger ConvInteger
    DynamicQuantizeMatMul DynamicQuantizeLSTM MatMulIntegerToFloat QLinearAdd QGemm QLinearSigmoid
    QLinearGlobalAveragePool QLinearMul QLinearConcat QLinearLeakyRelu MatMulNBits GatherBlockQuantized QAttention
    QEmbedLayerNormalization QLinearSoftmax QLinearAveragePool
    """.split()
)
SEQUENCE = frozenset(
    """
    SequenceConstruct SequenceAt SequenceEmpty SequenceInsert SequenceErase SequenceLength SplitToSequence
    ConcatFromSequence SequenceMap Optional OptionalGetElement OptionalHasElement
    """.split()
)
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
# Operators that ask something special of a converter; each that occurs becomes a flag.
TELLING = tuple(
    """
    Resize Upsample NonMaxSuppression TopK STFT DFT MelWeightMatrix Einsum GridSample InstanceNormalization
    LayerNormalization RMSNormalization GroupNormalization BatchNormalization CumSum Range RandomNormalLike
    RandomUniformLike RandomNormal RandomUniform ScatterND ScatterElements ConvTranspose RoiAlign Attention Exp Log
    ReduceSum ReduceL2 Pow SkipLayerNormalization Dropout NonZero Where Gelu RotaryEmbedding Celu Mod
    """.split()
)
INFERENCE_LIMIT = 1 << 30  # bytes of file beyond which shape inference is not tried
FLOAT16_MAX = 65504
HALF_SMALLEST_SUBNORMAL = 2.0**-25  # rounds to zero
SMALLEST_NORMAL = 2.0**-14


def type_name(element: int) -> str:
    """Return `float`, `float16`, ... for an ONNX element type."""
    return str(TensorProto.DataType.Name(element)).lower()


class _Census:
    """Counts over every node and tensor of every graph of a model."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.operators: collections.Counter[str] = collections.Counter()
        self.domains: collections.Counter[str] = collections.Counter()
        self.bytes_by_type: collections.Counter[str] = collections.Counter()
        self.half_hazards: collections.Counter[str] = collections.Counter()
        self.initializers = self.subgraphs = self.depth = 0
        self.external = False

    def graph(self, graph: onnx.GraphProto, level: int) -> None:
        self.initializers += len(graph.initializer)
        for tensor in graph.initializer:
            self.tensor(tensor)
        self.nodes(graph.node, level)

    def nodes(self, nodes: Iterable[onnx.NodeProto], level: int) -> None:
        self.depth = max(self.depth, level)
        for node in nodes:
            standard = node.domain in ("", "ai.onnx")
            self.operators[node.op_type if standard else f"{node.domain}::{node.op_type}"] += 1
            self.domains[node.domain or "ai.onnx"] += 1
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    self.tensor(attribute.t)
                for body in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                    self.subgraphs += 1
                    self.graph(body, level + 1)

    def tensor(self, tensor: TensorProto) -> None:
        try:
            size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        except (KeyError, TypeError):  # a type that numpy has no counterpart of
            size = 1
        self.bytes_by_type[type_name(tensor.data_type)] += math.prod(tensor.dims) * size
        self.external |= tensor.data_location == TensorProto.EXTERNAL
        if tensor.data_type == TensorProto.FLOAT:
            self._half(np.abs(onnx.numpy_helper.to_array(tensor, self.folder)).ravel())

    def _half(self, magnitudes: np.ndarray) -> None:
        """Count the constants that half precision cannot hold."""
        if not magnitudes.size:
            return
        finite = np.isfinite(magnitudes)
        large = finite & (magnitudes > FLOAT16_MAX)
        tiny = (magnitudes > 0) & (magnitudes <= HALF_SMALLEST_SUBNORMAL)
        subnormal = (magnitudes > HALF_SMALLEST_SUBNORMAL) & (magnitudes < SMALLEST_NORMAL)
        self.half_hazards["values"] += int(magnitudes.size)
        self.half_hazards["inf_or_nan"] += int(magnitudes.size - finite.sum())
        self.half_hazards["over_65504"] += int(large.sum())
        self.half_hazards["to_zero"] += int(tiny.sum())
        self.half_hazards["subnormal"] += int(subnormal.sum())
        self.half_hazards["tensors_over_65504"] += int(large.any())


def facts(path: str | pathlib.Path) -> Record:
    """Return the facts about the model at `path`, as JSON-ready values."""
    content = pathlib.Path(path).read_bytes()
    model = onnx.load_from_string(content)
    census = _Census(os.path.dirname(path))  # noqa: PTH120  onnx wants a string
    census.graph(model.graph, 0)
    for function in model.functions:
        census.nodes(function.node, 0)
    record: Record = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "ir_version": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "functions": len(model.functions),
    }
    if model.functions:
        record["function_names"] = sorted({f"{each.domain}::{each.name}" for each in model.functions})[:12]
    record.update(_of_census(census), **_of_graph(model.graph))
    record.update(_judged_by_onnx(model, str(path), external=census.external, size=len(content)))
    record["flags"] = _flags(record, census)
    return record


def _of_census(census: _Census) -> Record:
    present = set(census.operators)
    return {
        "nodes": sum(census.operators.values()),
        "initializers": census.initializers,
        "weight_bytes": dict(census.bytes_by_type),
        "fp16_constants": {key: count for key, count in census.half_hazards.items() if count},
        "ops": dict(census.operators.most_common()),
        "node_domains": dict(census.domains),
        "subgraphs": {
            "count": census.subgraphs,
            "depth": census.depth,
            "kinds": sorted(present & CONTROL_FLOW),
        },
        "quant_ops": sorted(present & (QUANTIZED | {f"com.microsoft::{name}" for name in QUANTIZED})),
        "sequence_ops": sorted(present & SEQUENCE),
        "rnn_ops": sorted(present & RECURRENT),
        "external_data": census.external,
    }


def _of_graph(graph: onnx.GraphProto) -> Record:
    constants = {tensor.name for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    return {
        "top_nodes": len(graph.node),
        "initializers_also_inputs": sum(value.name in constants for value in graph.input),
        "outputs_that_are_inputs_or_initializers": len(outputs & (constants | {value.name for value in graph.input})),
        "sparse_initializers": len(graph.sparse_initializer),
        "unnamed_nodes": sum(not node.name for node in graph.node),
        "inputs": [_value(value) for value in graph.input if value.name not in constants],
        "outputs": [_value(value) for value in graph.output],
    }


def _value(value: onnx.ValueInfoProto) -> Record:
    tensor = value.type
    if not tensor.HasField("tensor_type"):
        return {"name": value.name, "dtype": tensor.WhichOneof("value"), "shape": None}
    shape = None
    if tensor.tensor_type.HasField("shape"):
        shape = [
            size.dim_value if size.HasField("dim_value") else (size.dim_param or None)
            for size in tensor.tensor_type.shape.dim
        ]
    return {"name": value.name, "dtype": type_name(tensor.tensor_type.elem_type), "shape": shape}


def _judged_by_onnx(model: onnx.ModelProto, path: str, *, external: bool, size: int) -> Record:
    """Values that shape inference leaves untyped (a converter must cope with them), and the checker's verdict."""
    record: Record = {}
    if size < INFERENCE_LIMIT:
        try:
            graph = onnx.shape_inference.infer_shapes(model, data_prop=False).graph
        except Exception as error:  # noqa: BLE001  the failure is the fact
            record["shape_inference_error"] = str(error)[:200]
        else:
            known = {value.name for value in graph.value_info if value.type.WhichOneof("value")}
            known |= {value.name for value in [*graph.input, *graph.output]}
            results = [name for node in graph.node for name in node.output if name]
            record["untyped_values_after_inference"] = sum(name not in known for name in results)
    try:
        onnx.checker.check_model(path if external else model)
    except Exception as error:  # noqa: BLE001  likewise
        record["checker"] = str(error).strip().splitlines()[0][:200]
    else:
        record["checker"] = "ok"
    return record


def _flags(record: Record, census: _Census) -> list[str]:
    weights = record["weight_bytes"]
    opset = record["opsets"].get("ai.onnx", 0)
    depth = f"(depth {census.depth})" if census.depth > 1 else ""
    integers = weights.get("int8", 0) + weights.get("uint8", 0)
    half_inputs = any(value["dtype"] == "float16" for value in record["inputs"])
    odd = {"string", "sequence_type", "map_type", "optional_type"}
    conditions = [
        ("subgraph:" + "+".join(record["subgraphs"]["kinds"]) + depth, record["subgraphs"]["kinds"]),
        (f"functions:{record['functions']}", record["functions"]),
        ("rnn:" + "+".join(record["rnn_ops"]), record["rnn_ops"]),
        ("sequence", record["sequence_ops"]),
        ("quant:" + "+".join(record["quant_ops"]), record["quant_ops"]),
        *((name, name in census.operators) for name in TELLING),
        ("int8-weights-by-Cast+Mul", integers * 2 > sum(weights.values()) and not record["quant_ops"]),
        ("fp16-already", weights.get("float16") or half_inputs),
        ("bf16-already", weights.get("bfloat16")),
        ("fp64", weights.get("double")),
        (f"opset<13({opset})", 0 < opset < 13),
        ("const>65504", census.half_hazards["over_65504"]),
        *((f"domain:{domain}", True) for domain in sorted(census.domains) if domain != "ai.onnx"),
        ("external-data", census.external),
        ("initializers-as-inputs", record["initializers_also_inputs"]),
        ("non-tensor-or-string-io", any(v["dtype"] in odd for v in [*record["inputs"], *record["outputs"]])),
    ]
    return [flag for flag, holds in conditions if holds]
