"""Losses against torch's, and that each of them can be differentiated."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.framework.backward import gradients
from amp_transpiler.paddle.framework.programs import data

torch = pytest.importorskip("torch")
TF = torch.nn.functional

RANDOM = np.random.default_rng(5)
SCORES = RANDOM.normal(size=(6, 4)).astype(np.float32)
TARGET = RANDOM.normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2, 2, 0])
SHARES = np.abs(TARGET) / np.abs(TARGET).sum(1, keepdims=True)
WEIGHT = np.array([0.5, 2.0, 1.0, 3.0], np.float32)
PROBABILITIES = 1 / (1 + np.exp(-SCORES))


def check(run, ours, theirs, x, *others):
    """Compare values, and gradients by the first operand."""
    names = [f"x{i}" for i in range(1 + len(others))]
    arrays = dict(zip(names, (x, *others), strict=True))
    variables = [data(name, [None, *a.shape[1:]] if a.ndim > 1 else a.shape, a.dtype) for name, a in arrays.items()]
    loss = ours(*variables)
    (slope,) = gradients([loss], [variables[0]])
    tensors = [torch.from_numpy(a) for a in arrays.values()]
    tensors[0].requires_grad_(True)
    expected = theirs(*tensors)
    expected.sum().backward()
    got, got_slope = run([loss, slope], **arrays)
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_slope, tensors[0].grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # torch's, of its kl_div
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("ours", "theirs", "label"),
    [
        (F.mse_loss, TF.mse_loss, TARGET),
        (F.l1_loss, TF.l1_loss, TARGET),
        (F.smooth_l1_loss, TF.smooth_l1_loss, TARGET),
        (
            lambda *a, **k: F.smooth_l1_loss(*a, delta=0.4, **k),
            lambda *a, **k: TF.huber_loss(*a, delta=0.4, **k),
            TARGET,
        ),
        (F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, SHARES),
        (F.kl_div, TF.kl_div, SHARES),
    ],
    ids=["mse", "l1", "smooth l1", "smooth l1 delta", "bce with logits", "kl"],
)
def test_loss_of_values(run, ours, theirs, label, reduction):
    check(
        run, lambda x, y: ours(x, y, reduction=reduction), lambda x, y: theirs(x, y, reduction=reduction), SCORES, label
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy(run, reduction):
    check(
        run,
        lambda p, y: F.binary_cross_entropy(p, y, reduction=reduction),
        lambda p, y: TF.binary_cross_entropy(p, y, reduction=reduction),
        PROBABILITIES,
        SHARES,
    )


def test_binary_cross_entropy_at_certainty_is_finite(run):
    p, y = np.array([[0.0, 1.0, 0.0, 1.0]], np.float32), np.array([[1.0, 0.0, 0.0, 1.0]], np.float32)
    x = data("p", [None, 4])
    loss = F.binary_cross_entropy(x, data("y", [None, 4]), reduction="none")
    got, slope = run([loss, *gradients([loss], [x])], p=p, y=y)
    np.testing.assert_array_equal(got, [[100, 100, 0, 0]])
    assert np.isfinite(slope).all()


def test_weights_of_binary_losses(run):
    weight, positive = np.abs(TARGET), WEIGHT
    check(
        run,
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p),
        lambda x, y, w, p: TF.binary_cross_entropy_with_logits(x, y, w, pos_weight=p),
        SCORES,
        SHARES,
        weight,
        positive,
    )


def test_logits_that_overflow_an_exponential(run):
    x = np.array([[1000.0, -1000.0, 0.0, 50.0]], np.float32)
    check(
        run,
        F.binary_cross_entropy_with_logits,
        TF.binary_cross_entropy_with_logits,
        x,
        np.array([[0.0, 1.0, 0.5, 1.0]], np.float32),
    )


def test_kl_div_by_batch_with_labels_of_zero(run):
    label = SHARES.copy()
    label[0, 1] = 0
    check(
        run,
        lambda x, y: F.kl_div(x, y, "batchmean"),
        lambda x, y: TF.kl_div(x, y, reduction="batchmean"),
        SCORES,
        label,
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("column", [False, True], ids=["N", "N1"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weight"])
def test_cross_entropy(run, reduction, column, weighted):
    labels = LABELS[:, None] if column else LABELS

    def theirs(x, y, w=None):
        loss = TF.cross_entropy(x, y.reshape(-1), w, reduction=reduction)
        return loss[:, None] if column and reduction == "none" else loss

    check(
        run,
        lambda x, y, w=None: F.cross_entropy(x, y, w, reduction=reduction),
        theirs,
        SCORES,
        labels,
        *([WEIGHT] if weighted else []),
    )


@pytest.mark.parametrize("ignored", [-100, 2, 255])
def test_cross_entropy_leaves_out_ignored_samples(run, ignored):
    labels = LABELS.copy()
    labels[[1, 4]] = ignored
    check(
        run,
        lambda x, y: F.cross_entropy(x, y, ignore_index=ignored),
        lambda x, y: TF.cross_entropy(x, y, ignore_index=ignored),
        SCORES,
        labels,
    )


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("one", [False, True], ids=["", "with axis"])
def test_cross_entropy_along_an_axis_of_many(run, axis, reduction, one):
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    place = axis % 4
    samples = [size for i, size in enumerate(x.shape) if i != place]
    labels = RANDOM.integers(0, x.shape[place], samples)

    def theirs(scores, y):
        loss = TF.cross_entropy(torch.movedim(scores, place, 1), y.reshape(samples), reduction=reduction)
        return loss.unsqueeze(place) if one and reduction == "none" else loss

    target = np.expand_dims(labels, place) if one else labels
    check(run, lambda s, y: F.cross_entropy(s, y, axis=axis, reduction=reduction), theirs, x, target)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weight"])
def test_cross_entropy_of_soft_labels(run, reduction, weighted):
    def theirs(x, y, w=None):
        share = torch.ones(len(y)) if w is None else y @ w
        loss = -(y * TF.log_softmax(x, 1)).sum(1) * share
        return loss.sum() / share.sum() if reduction == "mean" else loss.sum()

    check(
        run,
        lambda x, y, w=None: F.cross_entropy(x, y, w, reduction=reduction, soft_label=True),
        theirs,
        SCORES,
        SHARES,
        *([WEIGHT] if weighted else []),
    )


def test_cross_entropy_of_probabilities(run):
    check(
        run,
        lambda p, y: F.cross_entropy(p, y, use_softmax=False),
        lambda p, y: TF.nll_loss(torch.log(p), y),
        PROBABILITIES,
        LABELS,
    )


def test_softmax_then_cross_entropy_takes_softmax_twice(run):
    check(
        run,
        lambda x, y: F.cross_entropy(input=F.softmax(x), label=y, reduction="mean"),
        lambda x, y: TF.cross_entropy(TF.softmax(x, -1), y[:, 0]),
        SCORES,
        LABELS[:, None],
    )


def test_softmax_with_cross_entropy(run):
    x, y = data("x", [None, 4]), data("y", [None, 1], "int64")
    loss, shares = F.softmax_with_cross_entropy(x, y, return_softmax=True)
    got, got_shares = run([loss, shares], x=SCORES, y=LABELS[:, None])
    tensor = torch.from_numpy(SCORES)
    expected = TF.cross_entropy(tensor, torch.from_numpy(LABELS), reduction="none")[:, None]
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)
    np.testing.assert_allclose(got_shares, TF.softmax(tensor, 1).numpy(), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss(run, reduction):
    x = RANDOM.normal(size=(2, 4, 3)).astype(np.float32)
    labels = RANDOM.integers(0, 4, (2, 3))
    check(
        run,
        lambda s, y, w: F.nll_loss(s, y, w, reduction=reduction),
        lambda s, y, w: TF.nll_loss(s, y, w, reduction=reduction),
        x,
        labels,
        WEIGHT,
    )


REFUSED = {
    "reduction": (lambda x: F.mse_loss(x, x, "average"), OptionError, "'average'"),
    "label type": (lambda x: F.cross_entropy(x, data("y", [None, 1])), InputError, "int64 or int32"),
    "label shape": (lambda x: F.cross_entropy(x, data("y", [None, 3], "int64")), InputError, "must be of shape"),
    "soft label": (
        lambda x: F.cross_entropy(x, data("y", [None, 1], "int64"), soft_label=True),
        InputError,
        "soft labels",
    ),
    "delta": (lambda x: F.smooth_l1_loss(x, x, delta=0), OptionError, "delta"),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    x = data("x", [None, 4])
    with pytest.raises(error, match=message):
        make(x)
