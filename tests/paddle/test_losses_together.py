"""Random programs with shared subexpressions and several losses over the same labels, at every AMP level, also saved.

The oracle is PyTorch, in float32 and without AMP.
"""

import json
import pathlib
import tempfile

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.paddle import static
from tests.support import array

torch = pytest.importorskip("torch", reason="torch is the oracle: install the extra [torch]")

LEVELS = [("O0", "float32"), ("O1", "float16"), ("O2", "float16"), ("O1", "bfloat16"), ("O2", "bfloat16")]
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}
BATCH, WIDTH, CLASSES, RATE = 4, 6, 3, 0.1
IGNORED = -100
WEIGHTS = [array(WIDTH, WIDTH, seed=1, scale=0.5), array(WIDTH, WIDTH, seed=2, scale=0.5)]
HEADS = [array(WIDTH, CLASSES, seed=seed, scale=0.5) for seed in (3, 4)]
FEED = {"x": array(BATCH, WIDTH, seed=5), "y": np.array([[2], [0], [1], [2]])}

# (operator, first and second operand among the values so far, counted from the last one)
STEPS = st.lists(
    st.tuples(st.sampled_from(["tanh", "sigmoid", "add", "mul", "fc0", "fc1"]), st.integers(0, 9), st.integers(0, 9)),
    max_size=4,
)
# (kind, value that the head reads, head)
KINDS = ["cross", "doubled", "turned", "nll", "smooth", "soft", "summed", "focal", "ignored", "distant"]
LOSSES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 1)),
    min_size=2,
    max_size=4,
).filter(lambda losses: any(kind != "soft" for kind, *_ in losses))  # what reads no label has no such input


def _cross(lib, scores, labels, reduction="mean", ignore=IGNORED):
    if lib is torch:
        return torch.nn.functional.cross_entropy(scores, labels[:, 0], reduction=reduction, ignore_index=ignore)
    return F.cross_entropy(scores, labels, reduction=reduction, ignore_index=ignore)


def _log_softmax(lib, scores):
    return torch.log_softmax(scores, -1) if lib is torch else F.log_softmax(scores)


def _nll(lib, scores, labels):
    log = _log_softmax(lib, scores)
    return torch.nn.functional.nll_loss(log, labels[:, 0]) if lib is torch else F.nll_loss(log, labels[:, 0])


def _one_hot(lib, labels):
    if lib is torch:
        return torch.nn.functional.one_hot(labels[:, 0], CLASSES).float()
    return F.one_hot(labels[:, 0], CLASSES)


def _loss(lib, kind, scores, labels):
    if kind == "nll":
        return _nll(lib, scores, labels)
    if kind == "smooth":
        shares = _one_hot(lib, labels) * 0.7 + 0.1
        return -(_log_softmax(lib, scores) * shares).sum(-1).mean()
    if kind == "soft":
        return -(_log_softmax(lib, scores) * lib.exp(_log_softmax(lib, scores * 0.5))).sum(-1).mean()
    if kind == "focal":
        return (_cross(lib, scores, labels, "none") ** 2).mean()
    if kind == "distant":
        return ((scores - _one_hot(lib, labels)) ** 2).mean()
    if kind == "turned":  # the classes of a square matrix of likenesses are its columns
        square = lib.matmul(scores, lib.transpose(scores, 0, 1) if lib is torch else lib.transpose(scores, [1, 0]))
        return _cross(lib, square * 0.3, labels)
    options = {"summed": {"reduction": "sum"}, "ignored": {"ignore": 1}}.get(kind, {})
    return _cross(lib, scores * 2.0 if kind == "doubled" else scores, labels, **options)


def total(lib, x, labels, weights, heads, steps, losses):
    """Interpret a program with the functions of `paddle` or `torch`."""
    values = [x]
    for operator, a, b in steps:
        left, other = values[-1 - a % len(values)], values[-1 - b % len(values)]
        if operator.startswith("fc"):
            values.append(lib.tanh(lib.matmul(left, weights[int(operator[2:])])))
        elif operator == "add":
            values.append(left + other)
        elif operator == "mul":
            values.append(lib.tanh(left) * other)
        else:
            values.append((lib.tanh if operator == "tanh" else torch.sigmoid if lib is torch else F.sigmoid)(left))
    parts = [
        _loss(lib, kind, lib.matmul(values[-1 - at % len(values)], heads[head]), labels) for kind, at, head in losses
    ]
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def expected(steps, losses):
    """Losses of two steps of gradient descent by PyTorch."""
    parameters = [torch.tensor(each, requires_grad=True) for each in (*WEIGHTS, *HEADS)]
    optimizer = torch.optim.SGD(parameters, RATE)
    losses_by_hand = []
    for _ in range(2):
        loss = total(torch, *map(torch.tensor, FEED.values()), parameters[:2], parameters[2:], steps, losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses_by_hand.append(loss.item())
    return losses_by_hand


def build(level, dtype, steps, losses):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, WIDTH]), static.data("y", [None, 1], "int64")
        parameters = [
            paddle.create_parameter(each.shape, "float32", default_initializer=paddle.nn.initializer.Assign(each))
            for each in (*WEIGHTS, *HEADS)
        ]
        loss = total(paddle, x, y, parameters[:2], parameters[2:], steps, losses)
        optimizer = paddle.optimizer.SGD(RATE, multi_precision=True)
        if level != "O0":
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype, init_loss_scaling=8.0)
        optimizer.minimize(loss)
    return main, startup, loss, optimizer


def as_saved(main, loss, scope):
    """Losses of two steps of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "step.onnx")
        static.save_training_program(main, path, {name: each.shape for name, each in FEED.items()}, [loss], scope)
        names = {each.key: json.loads(each.value) for each in onnx.load(path).metadata_props}
        session = amp.Session(path, place=paddle.CPUPlace())
        feed = {**load_file(path.with_suffix(".state.safetensors")), **FEED}
        fetched, updates = names["amp_transpiler.fetches"][loss.name], names["amp_transpiler.updates"]
        wanted = {each.name for each in session.inputs}
        losses = []
        for _ in range(2):
            fed = {name: value for name, value in feed.items() if name in wanted}
            value, *new = session.run(fed, [fetched, *updates.values()])
            feed.update(zip(updates, new, strict=True))
            losses.append(float(value))
    return losses


def check_drawn(steps, losses, level):
    """Check a program that was drawn at random; in one whose loss grows in a step, rounding decides where it ends."""
    wanted = expected(steps, losses)
    hypothesis.assume(wanted[1] < 2 * wanted[0])
    check(steps, losses, level, wanted)


def check(steps, losses, level, wanted=None):
    wanted = wanted or expected(steps, losses)
    main, startup, loss, optimizer = build(*level, steps, losses)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    if level[0] != "O0":
        optimizer.amp_init(paddle.CPUPlace(), scope)
    saved = as_saved(main, loss, scope)
    losses_seen = [float(executor.run(main, FEED, [loss], scope=scope)[0]) for _ in range(2)]
    scale = TOLERANCE[level[1]]
    np.testing.assert_allclose(losses_seen, wanted, rtol=scale, atol=scale)
    np.testing.assert_allclose(saved, wanted, rtol=scale, atol=scale)


TWO = [("cross", 0, 0), ("cross", 0, 1)]
CASES = {
    "two heads": ([], TWO),
    "auxiliary heads": ([("fc0", 0, 0), ("fc1", 0, 0)], [("cross", 0, 0), ("cross", 1, 1), ("cross", 2, 0)]),
    "one head twice": ([("fc0", 0, 0)], [("cross", 0, 0), ("doubled", 0, 0)]),
    "likenesses": ([("fc0", 0, 0)], [("turned", 0, 0), ("turned", 0, 1)]),
    "log probabilities": ([("fc0", 0, 0)], [("cross", 0, 0), ("nll", 0, 0)]),
    "distillation": ([("fc0", 0, 0)], [("cross", 0, 0), ("soft", 0, 0)]),
    "ignored by one": ([("fc0", 0, 0)], [("ignored", 0, 0), ("cross", 0, 1), ("ignored", 1, 1)]),
    "each sample": ([("fc0", 0, 0)], [("focal", 0, 0), ("cross", 0, 0), ("summed", 0, 1)]),
}


@pytest.mark.parametrize("level", [("O1", "float16"), ("O2", "bfloat16")], ids="-".join)
@pytest.mark.parametrize("name", CASES)
def test_losses_over_the_same_labels(name, level):
    check(*CASES[name], level)


@pytest.mark.slow
@hypothesis.settings(max_examples=40, deadline=None, database=None, derandomize=True)
@hypothesis.given(STEPS, LOSSES, st.sampled_from(LEVELS))
def test_random_programs_of_several_losses(steps, losses, level):
    check_drawn(steps, losses, level)
