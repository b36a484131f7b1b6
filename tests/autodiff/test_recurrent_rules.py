"""Gradients of LSTM, GRU and RNN, against torch's through the definitions written out a step at a time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.verifier import faults
from tests.autodiff.gradient_check import gradient_model, needs_torch, relative_error, run_gradients

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 2, 5
LENGTHS = np.array([4, 2, 1], np.int32)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RANDOM = np.random.default_rng(7)


def recurrent(op, direction="forward", *, given="b", attributes="", outputs="y, yh", element="float", free=False):
    """Return the operator as ONNX text, and its feeds. `given`: which of b, l(engths), h, c, p are there."""
    count, rows = 2 if direction == "bidirectional" else 1, GATES[op] * HIDDEN
    sizes = {"x": ("T", "B", INPUTS) if free else (STEPS, BATCH, INPUTS), "w": (count, rows, INPUTS)}
    sizes |= {"r": (count, rows, HIDDEN), "b": (count, 2 * rows), "l": (BATCH,), "h": (count, BATCH, HIDDEN)}
    sizes |= {"c": (count, BATCH, HIDDEN), "p": (count, 3 * HIDDEN)}
    slots = ["x", "w", "r", "b", "l", "h"] + (["c", "p"] if op == "LSTM" else [])
    names = [name if name in "xwr" or name in given else "" for name in slots]
    while not names[-1]:
        names.pop()
    held = [name for name in names if name]
    types = [f"{'int32' if n == 'l' else element}[{','.join(map(str, sizes[n]))}] {n}" for n in held]
    results = ", ".join(f"{element} {name}" for name in outputs.split(", ") if name != '""')
    options = ", ".join(filter(None, [f'direction = "{direction}", hidden_size = {HIDDEN}', attributes]))
    text = f"""<ir_version: 10, opset_import: ["" : 22]> g ({", ".join(types)}) => ({results})
        {{ {outputs} = {op} <{options}> ({", ".join(name or '""' for name in names)}) }}"""
    actual = {"T": STEPS, "B": BATCH}
    feeds = {n: RANDOM.normal(size=[actual.get(s, s) for s in sizes[n]]).astype("f") * np.float32(0.8) for n in held}
    if "l" in feeds:
        feeds["l"] = LENGTHS
    return text, feeds


# ---- the definitions, in torch ----


def activation(name, alpha=0.0, beta=0.0):
    import torch

    return {
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Relu": torch.relu,
        "Affine": lambda x: alpha * x + beta,
        "LeakyRelu": lambda x: torch.where(x >= 0, x, alpha * x),
        "ThresholdedRelu": lambda x: torch.where(x > alpha, x, 0.0),
        "ScaledTanh": lambda x: alpha * torch.tanh(beta * x),
        "HardSigmoid": lambda x: (alpha * x + beta).clamp(0, 1),
        "Elu": lambda x: torch.where(x > 0, x, alpha * (torch.exp(x) - 1)),
        "Softsign": lambda x: x / (1 + x.abs()),
        "Softplus": torch.nn.functional.softplus,
    }[name]


def rnn_step(a, clip, weights, x, h, c):
    w, r, wb, rb, _ = weights
    return a[0](clip(x @ w.T + h @ r.T + wb + rb)), c


def gru_step(linear):
    def step(a, clip, weights, x, h, c):
        w, r, wb, rb, _ = weights
        k = HIDDEN
        wz, wr, wn = (x @ w.T + wb).split(k, -1)
        hz, hr, hn = (h @ r.T + rb).split(k, -1)
        z, reset = a[0](clip(wz + hz)), a[0](clip(wr + hr))
        n = a[1](clip(wn + (reset * hn if linear else (reset * h) @ r[2 * k :].T + rb[2 * k :])))
        return (1 - z) * n + z * h, c

    return step


def lstm_step(coupled):
    def step(a, clip, weights, x, h, c):
        w, r, wb, rb, p = weights
        i, o, f, g = (x @ w.T + h @ r.T + wb + rb).split(HIDDEN, -1)
        pi, po, pf = p.split(HIDDEN, -1)
        i = a[0](clip(i + pi * c))
        f = 1 - i if coupled else a[0](clip(f + pf * c))
        c = f * c + i * a[1](clip(g))
        return a[0](clip(o + po * c)) * a[2](c), c

    return step


STEPPERS = {"RNN": rnn_step, "GRU": gru_step(False), "LSTM": lstm_step(False)}


def by_hand(op, direction, feeds, activations, step, clip=None):
    """The outputs y, yh and yc, from torch tensors of float64."""
    import torch

    x, count = feeds["x"], feeds["w"].shape[0]
    zero = torch.zeros(BATCH, HIDDEN, dtype=torch.float64)
    lengths = feeds.get("l", torch.full((BATCH,), STEPS))
    bounded = (lambda v: v.clamp(-clip, clip)) if clip else (lambda v: v)
    ys, hs, cs = [], [], []
    for d in range(count):
        wb, rb = feeds["b"][d].split(GATES[op] * HIDDEN) if "b" in feeds else (0.0, 0.0)
        rb = rb if "b" in feeds else torch.zeros(GATES[op] * HIDDEN, dtype=torch.float64)
        p = feeds["p"][d] if "p" in feeds else torch.zeros(3 * HIDDEN, dtype=torch.float64)
        h, c = (feeds[n][d] if n in feeds else zero for n in "hc")
        weights = (feeds["w"][d], feeds["r"][d], wb, rb, p)
        order = (
            range(STEPS)
            if direction == "forward" or (direction == "bidirectional" and d == 0)
            else range(STEPS - 1, -1, -1)
        )
        outs = {}
        for t in order:
            inside = (t < lengths).unsqueeze(-1)
            nh, nc = step(activations, bounded, weights, x[t], h, c)
            h, c = torch.where(inside, nh, h), torch.where(inside, nc, c)
            outs[t] = torch.where(inside, nh, zero)
        ys.append(torch.stack([outs[t] for t in range(STEPS)]))
        hs.append(h)
        cs.append(c)
    return {"y": torch.stack(ys, 1), "yh": torch.stack(hs), "yc": torch.stack(cs)}


def check(op, direction, text, feeds, names=None, step=None, clip=None, tolerance=1e-4):
    import torch

    model = onnx.parser.parse_model(text)
    slopes, seeds = run_gradients(model, feeds)
    assert set(slopes) == set(feeds) - {"l"}
    tensors = {
        n: torch.from_numpy(v) if n == "l" else torch.from_numpy(v).double().requires_grad_() for n, v in feeds.items()
    }
    defaults = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[op]
    activations = [activation(n) if isinstance(n, str) else activation(*n) for n in names or defaults]
    by_hand_outputs = by_hand(op, direction, tensors, activations, step or STEPPERS[op], clip)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert relative_error(value, by_hand_outputs[output.name].detach().numpy()) < 1e-5, (
            "the oracle computes something else"
        )
    sum((by_hand_outputs[n] * torch.from_numpy(np.asarray(s))).sum() for n, s in seeds.items()).backward()
    for name, grad in slopes.items():
        assert relative_error(grad, tensors[name].grad.numpy()) < tolerance, name


@needs_torch
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    ("direction", "inputs", "outputs"),
    [
        ("forward", "blhc", "y, yh"),
        ("reverse", "blhc", "y, yh"),
        ("bidirectional", "bl", "y"),
        ("bidirectional", "hc", '"", yh'),
    ],
)
def test_directions_lengths_and_first_states(op, direction, inputs, outputs):
    inputs = inputs if op == "LSTM" else inputs.replace("c", "")
    outputs = f"{outputs}, yc" if op == "LSTM" and "yh" in outputs else outputs
    check(op, direction, *recurrent(op, direction, given=inputs, outputs=outputs))


@needs_torch
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_free_length_and_batch(op):
    check(op, "bidirectional", *recurrent(op, "bidirectional", given="bl", free=True))


@needs_torch
@pytest.mark.parametrize("given", ["b", "blh"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gru_that_resets_after_the_product(given, clip):
    attributes = "linear_before_reset = 1" + (f", clip = {clip}" if clip else "")
    text, feeds = recurrent("GRU", "bidirectional", given=given, attributes=attributes)
    check("GRU", "bidirectional", text, feeds, step=gru_step(True), clip=clip)


@needs_torch
@pytest.mark.parametrize("given", ["bp", "blhcp"])
@pytest.mark.parametrize("coupled", [0, 1])
def test_lstm_with_peepholes_and_coupled_gates(given, coupled):
    text, feeds = recurrent("LSTM", "bidirectional", given=given, attributes=f"input_forget = {coupled}")
    check("LSTM", "bidirectional", text, feeds, step=lstm_step(bool(coupled)))


@needs_torch
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_clipped_gates(op):
    check(op, "forward", *recurrent(op, attributes="clip = 0.4"), clip=0.4)


@needs_torch
@pytest.mark.parametrize(
    "chosen",
    [
        *[("Relu",), ("Affine", 0.7, 0.2), ("LeakyRelu", 0.1), ("ThresholdedRelu", 0.3), ("ScaledTanh", 0.8, 1.2)],
        *[("HardSigmoid", 0.3, 0.4), ("Elu", 0.7), ("Softsign",), ("Softplus",), ("Sigmoid",)],
    ],
)
def test_activations(chosen):
    name, *parameters = chosen
    options = [f'activations = ["{name}"]']
    options += [f"activation_{k} = [{v}]" for k, v in zip(("alpha", "beta"), parameters, strict=False)]
    check("RNN", "forward", *recurrent("RNN", given="bh", attributes=", ".join(options)), names=[chosen])


@needs_torch
def test_activations_of_an_lstm():
    chosen = [("HardSigmoid", 0.3, 0.4), ("Relu",), ("Softsign",)]
    attributes = 'activations = ["HardSigmoid", "Relu", "Softsign"], activation_alpha = [0.3], activation_beta = [0.4]'
    check("LSTM", "forward", *recurrent("LSTM", attributes=attributes, outputs="y, yh, yc"), names=chosen)


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_low_gradients_have_the_type_of_their_input(op, element):
    text, _ = recurrent(op, "bidirectional", given="blh", element=element)
    backward, names = gradient_model(onnx.parser.parse_model(text))
    assert not list(faults(ir.from_proto(backward)))
    types = {v.name: v.type.tensor_type.elem_type for v in [*backward.graph.input, *backward.graph.output]}
    assert names
    assert all(types[f"grad_{name}"] == types[name] for name in names)


def test_only_the_steps_are_in_a_loop():
    """The products with the weights are taken over all steps at once; a step has few operators."""
    text, _ = recurrent("LSTM")
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    bodies = [a.g for n in backward.graph.node if n.op_type == "Scan" for a in n.attribute if a.name == "body"]
    operators = [[n.op_type for n in body.node if n.op_type != "Identity"] for body in bodies]
    assert sorted(map(len, operators)) == [2, 7]
    assert sum(kinds.count("MatMul") for kinds in operators) == 1


def test_refusals():
    text, _ = recurrent("LSTM", attributes="layout = 1")
    with pytest.raises(ModelError, match="layout=1"):
        gradient_model(onnx.parser.parse_model(text))
    text, _ = recurrent("RNN", attributes='activations = ["Cosine"]')
    with pytest.raises(ModelError, match="'Cosine' is unknown"):
        gradient_model(onnx.parser.parse_model(text))
