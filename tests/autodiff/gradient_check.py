"""Checks of gradient rules: against central differences in float64 by ONNX's evaluator, and against torch autograd."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.autodiff import differentiate
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.types import propagate_types

TOLERANCE = 1e-4  # relative norm, in float32
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed"
)


def gradient_model(
    model: onnx.ModelProto, wrt: Sequence[str] | None = None, *, is_standard: bool = True
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with `<output>__seed` inputs and `grad_<input>` outputs, and the inputs differentiated.

    Args:
        model: the model.
        wrt: inputs to differentiate by; None: the float ones.
        is_standard: whether ONNX's checker knows its operators. ONNX Runtime puts some of its own into ONNX's domain.
    """
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for declared in model.graph.output:
        declared.type.tensor_type.ClearField("shape")  # in ONNX text, `float y` declares a scalar
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, data_prop=True)
    work = ir.from_proto(inferred)
    propagate_types(work)
    builder = GraphBuilder(work, prefix="grad/")
    graph = work.graph
    values = [v for v in graph.inputs if (v.name in wrt if wrt is not None else is_float_tensor(v))]
    seeds = {}
    for output in list(graph.outputs):
        if is_float_tensor(output) and output not in seeds:
            seed = ir.Value(name=f"{output.name}__seed", type=output.type, shape=output.shape)
            graph.inputs.append(seed)
            seeds[output] = seed
    grads = differentiate(builder, seeds, values)
    names = []
    for value in values:
        if value in grads:
            named = builder.op("Identity", [grads[value]], name=f"grad_{value.name}")
            graph.outputs.append(named)
            names.append(str(value.name))
    proto = ir.to_proto(work)
    if is_standard:
        onnx.checker.check_model(proto, full_check=True)
    return proto, names


def run_gradients(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    wrt: Sequence[str] | None = None,
    seed: int = 20260101,  # tests draw feeds with other seeds: a cotangent equal to an input hides errors
    seeds: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return gradient by input, and the cotangent given to each output, from ONNX Runtime on the CPU in float32."""
    backward, names = gradient_model(model, wrt)
    session = onnxruntime.InferenceSession(backward.SerializeToString(), providers=["CPUExecutionProvider"])
    forward = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = dict(zip([o.name for o in forward.get_outputs()], forward.run(None, dict(feeds)), strict=True))
    if seeds is None:
        random = np.random.default_rng(seed)
        seeds = {
            i.name.removesuffix("__seed"): random.normal(size=outputs[i.name.removesuffix("__seed")].shape)
            for i in session.get_inputs()
            if i.name.endswith("__seed")
        }
    seed_feeds = {f"{k}__seed": np.asarray(v, outputs[k].dtype) for k, v in seeds.items()}
    known = {i.name for i in session.get_inputs()}
    values = session.run([f"grad_{n}" for n in names], {k: v for k, v in {**feeds, **seed_feeds}.items() if k in known})
    return dict(zip(names, values, strict=True)), dict(seeds)


def central_differences(
    text: str, feeds: Mapping[str, np.ndarray], seeds: Mapping[str, np.ndarray], name: str, step: float = 1e-6
) -> np.ndarray:
    """Return the gradient by input `name` of the sum of outputs times `seeds`, in float64 by ReferenceEvaluator.

    Args:
        text: the model as ONNX text, float32; every `float[`, `float ` type in it is read as double.
        feeds: the inputs to differentiate at.
        seeds: cotangent by output.
        name: the input.
        step: of the difference.
    """
    evaluator = onnx.reference.ReferenceEvaluator(onnx.parser.parse_model(doubled(text)))
    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    outputs = list(seeds)

    def value(x: np.ndarray) -> float:
        results = evaluator.run(outputs, {**wide, name: x})
        return float(sum(np.sum(np.asarray(y, np.float64) * seeds[o]) for o, y in zip(outputs, results, strict=True)))

    x = wide[name]
    result = np.zeros(x.size)
    for index in range(x.size):
        for sign in (1.0, -1.0):
            moved = x.reshape(-1).copy()
            moved[index] += sign * step
            result[index] += sign * value(moved.reshape(x.shape))
    return (result / (2 * step)).reshape(x.shape)


def doubled(text: str) -> str:
    """Return the ONNX text with double for every float32 tensor type."""
    return text.replace("float[", "double[").replace("float ", "double ").replace("float{", "double{")


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the norm of the difference over the norm of `want`, which counts as 0.01 at least.

    Where a gradient is zero by cancellation, the float32 rounding of the terms is left over.
    """
    scale = float(np.linalg.norm(np.asarray(want, np.float64)))
    return float(np.linalg.norm(np.asarray(got, np.float64) - want)) / max(scale, 1e-2)


def check_by_differences(
    text: str, feeds: Mapping[str, np.ndarray], wrt: Sequence[str] | None = None, tolerance: float = TOLERANCE
) -> dict[str, np.ndarray]:
    """Assert that the gradients of the model agree with central differences; return them."""
    model = onnx.parser.parse_model(text)
    slopes, seeds = run_gradients(model, feeds, wrt)
    assert slopes, "no gradient was computed"
    for name, grad in slopes.items():
        want = central_differences(text, feeds, seeds, name)
        assert grad.shape == want.shape
        assert relative_error(grad, want) < tolerance, (name, grad, want)
    return slopes


def check_by_torch(
    text: str,
    feeds: Mapping[str, np.ndarray],
    function: Callable[..., object],
    wrt: Sequence[str] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Assert that the gradients agree with torch autograd in float64.

    Args:
        text: the model as ONNX text.
        feeds: the inputs to differentiate at.
        function: takes torch tensors by the names of `feeds`, returns the outputs in order (one or a tuple).
        wrt: inputs to differentiate by; all float ones unless given.
        tolerance: relative norm.
    """
    import torch

    model = onnx.parser.parse_model(text)
    slopes, seeds = run_gradients(model, feeds, wrt)
    assert slopes, "no gradient was computed"
    tensors = {}
    for name, array in feeds.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        tensors[name] = tensor.double().requires_grad_(name in slopes) if array.dtype == np.float32 else tensor
    outputs = function(**tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum(
        (y * torch.from_numpy(np.asarray(seeds[o.name]))).sum()
        for y, o in zip(outputs, model.graph.output, strict=True)
        if o.name in seeds
    )
    total.backward()
    for name, grad in slopes.items():
        want = tensors[name].grad.numpy()
        assert grad.shape == want.shape
        assert relative_error(grad, want) < tolerance, (name, grad, want)
