"""A second opinion on verified results: the fp32 source, and the result node by node with every low value rounded.

It shares nothing with the package. Each node of the result runs alone, in float32, in ONNX Runtime's CPU provider; its
outputs are rounded to the types that they have in the file. Control flow is walked in Python.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import amp_transpiler  # noqa: F401  before onnxruntime, whose telemetry it switches off

# isort: split

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, TensorProto

from fuzzing.feeds import make_feeds
from fuzzing.pipes import private_stdout

Values = dict[str, Any]

_LOW: dict[int, np.dtype] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_WHOLE: dict[int, np.dtype] = {
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT64: np.dtype(np.uint64),
}
_NUMPY_HAS = frozenset(range(17))  # the element types before float8, which ONNX Runtime hands out as bytes
_LOW_DTYPES = frozenset(_LOW.values())
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_LARGEST_TRIPS = 64
_LEEWAY = (2.0, 0.005)  # ours may be twice the reported error, and half a percent: sums are added in another order


class NotJudged(Exception):
    """The judge cannot run this model; the message says why."""


def judge(case: dict[str, Any]) -> str:
    """Return `agrees`, `wrong: ...` or `not judged: ...` about one result.

    Args:
        case: `index`, `source`, `result`, and `reported`: output -> [relative error, non-finite elements]. Or `loads`,
            a refused model: the answer is whether ONNX Runtime loads it.
    """
    if "loads" in case:
        return "refused, and ONNX Runtime loads it" if _loads(case["loads"]) else "refused by ONNX Runtime, too"
    try:
        source, result = (_read(case[key]) for key in ("source", "result"))
        feeds = make_feeds(source, case["index"])
        if feeds is None:
            return "not judged: its inputs cannot be made"
        wanted = _run_whole(pathlib.Path(case["source"]), feeds)
        results = Emulation(result).run(feeds)
    except NotJudged as reason:
        return f"not judged: {reason}"
    for name, (relative, nonfinite) in case["reported"].items():
        if name not in results or name not in wanted:
            continue
        if fault := _disagreement(wanted[name], results[name], relative, nonfinite):
            return f"wrong: output '{name}' {fault}"
    return "agrees"


def _disagreement(wanted: Any, result: Any, relative: float, nonfinite: int) -> str:
    if not isinstance(wanted, np.ndarray) or not isinstance(result, np.ndarray) or not _is_float(wanted):
        return ""
    if wanted.shape != result.shape:
        return f"has shape {result.shape}, in fp32 {wanted.shape}"
    wanted, result = wanted.astype(np.float64).ravel(), result.astype(np.float64).ravel()
    known = np.isfinite(wanted)
    lost = int(np.count_nonzero(known & ~np.isfinite(result)))
    if lost > nonfinite:
        return f"has {lost} non-finite elements, reported were {nonfinite}"
    both = known & np.isfinite(result)
    norm = float(np.linalg.norm(wanted[both]))
    ours = float(np.linalg.norm(result[both] - wanted[both])) / norm if norm > 2.0**-14 else 0.0
    if ours > _LEEWAY[0] * relative + _LEEWAY[1]:
        return f"differs by {ours:.3%}, reported were {relative:.3%}"
    return ""


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype in _LOW_DTYPES


def _read(path: str) -> onnx.ModelProto:
    try:
        return onnx.load_model(path)
    except Exception as error:  # damaged external data, and whatever protobuf raises
        raise NotJudged(f"cannot be read: {type(error).__name__}") from error


def _run_whole(path: pathlib.Path, feeds: Values) -> Values:
    try:
        session = _session(str(path))
        return dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    except Exception as error:  # ONNX Runtime raises a dozen classes
        raise NotJudged(f"the source does not run: {type(error).__name__}") from error


def _loads(path: str) -> bool:
    try:
        _session(path)
    except Exception:  # noqa: BLE001  (ONNX Runtime raises a dozen classes)
        return False
    return True


def _session(model: str | bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Emulation:
    """Runs one model node by node."""

    def __init__(self, model: onnx.ModelProto) -> None:
        if len(model.functions):
            raise NotJudged("it has functions")
        try:
            typed = onnx.shape_inference.infer_shapes(model)
        except Exception as error:  # InferenceError, and whatever a shape function raises
            raise NotJudged(f"no types: {type(error).__name__}") from error
        self._imports = list(model.opset_import)
        self._ir_version = model.ir_version
        self._graph = typed.graph

    def run(self, feeds: Values) -> Values:
        """Return the outputs by name."""
        values = self._run_graph(self._graph, dict(feeds), {})
        return {output.name: values[output.name] for output in self._graph.output if output.name in values}

    def _run_graph(self, graph: onnx.GraphProto, inputs: Values, outer: Values) -> Values:
        values = {**outer, **{tensor.name: _array(tensor) for tensor in graph.initializer}, **inputs}
        types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output) if _is_tensor(v)}
        for node in graph.node:
            try:
                results = self._run_node(node, values, types)
            except KeyError as error:
                raise NotJudged(f"{error} is not there") from error
            values.update({name: value for name, value in zip(node.output, results, strict=False) if name})
        return values

    def _run_node(self, node: onnx.NodeProto, values: Values, types: dict[str, int]) -> list[Any]:
        if node.op_type in _RANDOM:
            raise NotJudged("it draws random numbers")
        if node.op_type == "If" and not node.domain:
            chosen = _body(node, "then_branch" if bool(values[node.input[0]]) else "else_branch")
            inner = self._run_graph(chosen, {}, values)
            return [inner[output.name] for output in chosen.output]
        if node.op_type == "Loop" and not node.domain:
            return self._run_loop(node, values)
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise NotJudged(f"it has a {node.op_type}")
        if node.op_type in {"Cast", "CastLike"} and not node.domain:
            return [self._cast(node, values)]
        return self._run_alone(node, values, types)

    def _run_loop(self, node: onnx.NodeProto, values: Values) -> list[Any]:
        body = _body(node, "body")
        trips = int(values[node.input[0]]) if node.input[0] else _LARGEST_TRIPS
        going = bool(values[node.input[1]]) if len(node.input) > 1 and node.input[1] else True
        states = [values[name] for name in node.input[2:]]
        scans: list[list[Any]] = [[] for _ in body.output[1 + len(states) :]]
        step = 0
        while going and step < trips:
            if step >= _LARGEST_TRIPS:
                raise NotJudged("a long loop")
            arguments = [np.asarray(step, np.int64), np.asarray(going), *states]
            inner = self._run_graph(body, dict(zip((i.name for i in body.input), arguments, strict=True)), values)
            results = [inner[output.name] for output in body.output]
            going, states = bool(results[0]), results[1 : 1 + len(states)]
            for scan, result in zip(scans, results[1 + len(states) :], strict=True):
                scan.append(result)
            step += 1
        if scans and not step:
            raise NotJudged("a loop without a turn")
        return [*states, *(np.stack(scan) for scan in scans)]

    def _cast(self, node: onnx.NodeProto, values: Values) -> Any:
        value = values[node.input[0]]
        to = _onnx_type(values[node.input[1]]) if node.op_type == "CastLike" else node.attribute[0].i
        if not isinstance(value, np.ndarray):
            raise NotJudged("a cast of no tensor")
        if to not in _NUMPY_HAS:
            raise NotJudged("a type that numpy lacks")
        if to in _LOW:
            if value.dtype.kind in "OUS":
                raise NotJudged("a cast of text")
            with np.errstate(over="ignore", invalid="ignore"):
                return value.astype(np.float32).astype(_LOW[to])
        if value.dtype.kind == "f" and to in _WHOLE and not _fits(value, _WHOLE[to]):
            raise NotJudged("a cast out of range, which every processor does in its own way")
        plain = onnx.helper.make_node("Cast", [node.input[0]], [node.output[0]], to=to)
        return self._run_alone(plain, values, {})[0]

    def _run_alone(self, node: onnx.NodeProto, values: Values, types: dict[str, int]) -> list[Any]:
        """Run one node in float32, and round its outputs."""
        node_feeds = {name: values[name] for name in node.input if name}
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        widened = _widen_attributes(plain)
        feeds = {name: _wide(value) for name, value in node_feeds.items()}
        graph = onnx.GraphProto(name="one", node=[plain])
        graph.input.extend(_value_info(name, value) for name, value in feeds.items())
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        model = onnx.ModelProto(ir_version=self._ir_version, opset_import=self._imports, graph=graph)
        try:
            results = iter(_session(model.SerializeToString()).run(None, feeds))
        except Exception as error:  # ONNX Runtime raises a dozen classes
            raise NotJudged(f"{node.op_type} does not run alone: {str(error)[:120]!r}") from error
        fallback = next((value.dtype for value in node_feeds.values() if _is_low(value)), widened)
        rounded = []
        for name in node.output:
            result = next(results) if name else None
            if types.get(name, TensorProto.FLOAT) not in _NUMPY_HAS:
                raise NotJudged("a type that numpy lacks")
            dtype = _LOW.get(types[name]) if types.get(name) else fallback
            rounded.append(_round(result, dtype))
        return rounded


def _body(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    body: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == name)
    return body


def _fits(value: np.ndarray, dtype: np.dtype) -> bool:
    """Whether every element is a number that an integer type holds."""
    limits = np.iinfo(dtype)
    return bool(np.isfinite(value).all()) and bool(((value > limits.min - 1) & (value < limits.max + 1)).all())


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def _array(tensor: TensorProto) -> np.ndarray:
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # a damaged tensor that the package found good
        raise NotJudged(f"tensor '{tensor.name}' cannot be read: {type(error).__name__}") from error


def _is_low(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in _LOW_DTYPES


def _wide(value: Any) -> Any:
    """Return a value with low floats as float32."""
    if isinstance(value, list):
        return [_wide(item) for item in value]
    if value is None:
        raise NotJudged("an empty optional")
    return value.astype(np.float32) if _is_low(value) else value


def _round(value: Any, dtype: np.dtype | None) -> Any:
    if isinstance(value, list):
        return [_round(item, dtype) for item in value]
    if dtype is None or not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def _value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        element = _onnx_type(value[0]) if value else TensorProto.FLOAT
        return onnx.helper.make_tensor_sequence_value_info(name, element, None)
    return onnx.helper.make_tensor_value_info(name, _onnx_type(value), list(value.shape))


def _onnx_type(value: Any) -> int:
    if not isinstance(value, np.ndarray):
        raise NotJudged("a value that is no tensor")
    return TensorProto.STRING if value.dtype.kind in "OUS" else int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype))


def _widen_attributes(node: onnx.NodeProto) -> np.dtype | None:
    """Make low tensors and types among a node's attributes float32; return the format they had."""
    low_type = None
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in _LOW:
            low_type = _LOW[attribute.t.data_type]
            wide = onnx.numpy_helper.from_array(_array(attribute.t).astype(np.float32))
            attribute.t.CopyFrom(wide)
        elif attribute.name in {"dtype", "output_dtype"} and attribute.i in _LOW:
            low_type = _LOW[attribute.i]
            attribute.i = TensorProto.FLOAT
    return low_type


def main() -> None:
    """Judge the cases that come in, one JSON line each, until there are no more."""
    answers = private_stdout()
    ort.set_default_logger_severity(4)
    for line in sys.stdin:
        print(json.dumps(judge(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
