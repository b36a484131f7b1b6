"""Losses of distances, margins and distributions, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(17)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


X, Y, Z = normal(4, 5), normal(4, 5), normal(4, 5)
P = 1 / (1 + np.exp(-X))
SIGN = np.where(Y > 0, 1, -1).astype(np.float32)
ROW = np.array([1, -1, -1, 1])
CLASS = np.array([0, 3, 2, 4])
HOT = (Y > 0).astype(np.float32)
COUNT = np.abs(np.round(3 * Y)).astype(np.float32)
LABELS = np.array([[3, 0, -1, 1, 2], [1, -1, 0, 2, 3], [4, 3, 2, 1, 0], [-1, 0, 1, 2, 3]])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.1, 1.5], np.float32)


def focal(x, y, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(x)
    loss = TF.binary_cross_entropy_with_logits(x, y, reduction="none") * (p * (1 - y) + (1 - p) * y) ** gamma
    return loss * (alpha * y + (1 - alpha) * (1 - y)) if alpha >= 0 else loss


def npair(anchor, positive, labels, l2_reg=0.002):
    same = (labels[:, None] == labels[None]).float()
    target = same / same.sum(1, keepdim=True)
    lengths = (anchor**2).sum(1).mean() + (positive**2).sum(1).mean()
    return -(target * torch.log_softmax(anchor @ positive.T, 1)).sum(1).mean() + 0.25 * l2_reg * lengths


def dice(x, label, epsilon=1e-5):
    hot = TF.one_hot(label[:, 0], 5).float()
    return (1 - 2 * (x * hot).sum(1) / (x.sum(1) + hot.sum(1) + epsilon)).mean()


CASES = {}
for _how in ("mean", "sum", "none"):
    CASES |= {
        f"margin_ranking_loss {_how}": case(
            lambda x, y, s, r=_how: F.margin_ranking_loss(x, y, s, 0.3, r),
            lambda x, y, s, r=_how: TF.margin_ranking_loss(x, y, s.detach(), 0.3, reduction=r),
            X,
            Y,
            SIGN.astype(np.int64),
        ),
        f"hinge_embedding_loss {_how}": case(
            lambda x, s, r=_how: F.hinge_embedding_loss(x, s, 0.7, r),
            lambda x, s, r=_how: TF.hinge_embedding_loss(x, s, 0.7, reduction=r),
            X,
            SIGN.astype(np.int64),
        ),
        f"cosine_embedding_loss {_how}": case(
            lambda x, y, s, r=_how: F.cosine_embedding_loss(x, y, s, -0.2, r),
            lambda x, y, s, r=_how: TF.cosine_embedding_loss(x, y, s, -0.2, reduction=r),
            X,
            Y,
            ROW,
        ),
        f"triplet_margin_loss {_how}": case(
            lambda x, y, z, r=_how: F.triplet_margin_loss(x, y, z, reduction=r),
            lambda x, y, z, r=_how: TF.triplet_margin_loss(x, y, z, reduction=r),
            X,
            Y,
            Z,
        ),
        f"multi_margin_loss {_how}": case(
            lambda x, c, w, r=_how: F.multi_margin_loss(x, c, 2, 0.8, w, r),
            lambda x, c, w, r=_how: TF.multi_margin_loss(x, c, 2, 0.8, w.detach(), reduction=r),
            X,
            CLASS,
            WEIGHT,
            differentiable=False,
        ),
        f"multi_label_margin_loss {_how}": case(
            lambda x, c, r=_how: F.multi_label_margin_loss(x, c, r),
            lambda x, c, r=_how: TF.multilabel_margin_loss(x, c, reduction=r),
            X,
            LABELS,
        ),
        f"multi_label_soft_margin_loss {_how}": case(
            lambda x, i, r=_how: F.multi_label_soft_margin_loss(x, i.astype("float32"), None, r),
            lambda x, i, r=_how: TF.multilabel_soft_margin_loss(x, i.float(), reduction=r),
            X,
            HOT.astype(np.int64),
        ),
        f"soft_margin_loss {_how}": case(
            lambda x, s, r=_how: F.soft_margin_loss(x, s, r),
            lambda x, s, r=_how: TF.soft_margin_loss(x, s, reduction=r),
            X,
            SIGN.astype(np.int64),
        ),
        f"poisson_nll_loss {_how}": case(
            lambda x, i, r=_how: F.poisson_nll_loss(x, i, reduction=r),
            lambda x, i, r=_how: TF.poisson_nll_loss(x, i, reduction=r),
            X,
            COUNT.astype(np.int64),
        ),
        f"gaussian_nll_loss {_how}": case(
            lambda x, y, v, r=_how: F.gaussian_nll_loss(x, y, v, True, reduction=r),
            lambda x, y, v, r=_how: TF.gaussian_nll_loss(x, y, v, True, reduction=r),
            X,
            Y,
            P,
        ),
        f"sigmoid_focal_loss {_how}": case(
            lambda x, i, r=_how: F.sigmoid_focal_loss(x, i, reduction=r),
            lambda x, i, r=_how: (
                getattr(torch, r, lambda v: v)(focal(x, i.float())) if r != "none" else focal(x, i.float())
            ),
            X,
            HOT.astype(np.int64),
        ),
    }
CASES |= {
    "cosine_similarity": case(F.cosine_similarity, TF.cosine_similarity, X, Y),
    "cosine_similarity axis": case(
        lambda x, y: F.cosine_similarity(x, y, 0), lambda x, y: TF.cosine_similarity(x, y, 0), X, Y
    ),
    "pairwise_distance": case(F.pairwise_distance, TF.pairwise_distance, X, Y),
    "pairwise_distance 1": case(
        lambda x, y: F.pairwise_distance(x, y, 1.0, keepdim=True),
        lambda x, y: TF.pairwise_distance(x, y, 1.0, keepdim=True),
        X,
        Y,
    ),
    "square_error_cost": case(F.square_error_cost, lambda x, y: (x - y) ** 2, X, Y),
    "triplet_margin_loss swap": case(
        lambda x, y, z: F.triplet_margin_loss(x, y, z, 2.0, 1.0, swap=True),
        lambda x, y, z: TF.triplet_margin_loss(x, y, z, 2.0, 1.0, swap=True),
        X,
        Y,
        Z,
    ),
    "triplet_margin_with_distance_loss": case(
        lambda x, y, z: F.triplet_margin_with_distance_loss(x, y, z, lambda a, b: 1 - F.cosine_similarity(a, b)),
        lambda x, y, z: TF.triplet_margin_with_distance_loss(
            x, y, z, distance_function=lambda a, b: 1 - TF.cosine_similarity(a, b)
        ),
        X,
        Y,
        Z,
    ),
    "multi_margin_loss": case(F.multi_margin_loss, TF.multi_margin_loss, X, CLASS),
    "multi_label_soft_margin_loss weight": case(
        lambda x, i, w: F.multi_label_soft_margin_loss(x, i.astype("float32"), w),
        lambda x, i, w: TF.multilabel_soft_margin_loss(x, i.float(), w.detach()),
        X,
        HOT.astype(np.int64),
        WEIGHT,
        differentiable=False,
    ),
    "poisson_nll_loss full": case(
        lambda x, i: F.poisson_nll_loss(x, i, False, True),
        lambda x, i: TF.poisson_nll_loss(x, i, False, True),
        P,
        COUNT.astype(np.int64),
    ),
    "sigmoid_focal_loss normalizer": case(
        lambda x, i, n: F.sigmoid_focal_loss(x, i, n, -1, 1.5),
        lambda x, i, n: focal(x, i.float(), -1, 1.5).sum() / n.float(),
        X,
        HOT.astype(np.int64),
        np.array(4),
    ),
    "npair_loss": case(F.npair_loss, npair, X, Y, np.array([0, 1, 0, 2]), tolerance=1e-4),
    "dice_loss": case(F.dice_loss, dice, P, CLASS[:, None]),
    "log_loss": case(
        F.log_loss,
        lambda p, y: -y * torch.log(p + 1e-4) - (1 - y) * torch.log(1 - p + 1e-4),
        P[:, :1],
        P[:, 1:2],
        tolerance=1e-4,
    ),
    "kl_div log_target": case(
        lambda x, y: F.kl_div(x, y, "sum", True), lambda x, y: TF.kl_div(x, y, reduction="sum", log_target=True), X, Y
    ),
    "smooth_l1_loss not huber": case(
        lambda x, y: F.smooth_l1_loss(x, y, delta=0.5, is_huber=False),
        lambda x, y: TF.smooth_l1_loss(x, y, beta=0.5),
        X,
        Y,
    ),
    "cross_entropy label_smoothing": case(
        lambda x, c: F.cross_entropy(x, c, label_smoothing=0.2),
        lambda x, c: TF.cross_entropy(x, c, label_smoothing=0.2),
        X,
        CLASS,
        fixed=True,
    ),
    "label_smooth": case(F.label_smooth, lambda y: 0.9 * y + 0.1 / 5, HOT, fixed=True),
    "label_smooth prior": case(
        lambda y, w: F.label_smooth(y, w, 0.2), lambda y, w: 0.8 * y + 0.2 * w, HOT, WEIGHT[None]
    ),
}


def ctc(scores, labels, steps, lengths, **options):
    return TF.ctc_loss(torch.log_softmax(scores, 2), labels, steps, lengths, **options)


SCORES = normal(8, 3, 5)
TEXT = np.array([[1, 2, 2], [3, 1, 4], [4, 4, 1]])
STEPS, LENGTHS = np.array([8, 6, 7]), np.array([3, 2, 1])
for _how in ("mean", "sum", "none"):
    CASES[f"ctc_loss {_how}"] = case(
        lambda x, t, n, m, r=_how: F.ctc_loss(x, t, n, m, reduction=r),
        lambda x, t, n, m, r=_how: ctc(x, t, n, m, reduction=r),
        SCORES,
        TEXT,
        STEPS,
        LENGTHS,
    )
CASES["ctc_loss blank"] = case(
    lambda x, t, n, m: F.ctc_loss(x, t - 1, n, m, 4),
    lambda x, t, n, m: ctc(x, t - 1, n, m, blank=4),
    SCORES,
    TEXT,
    STEPS,
    LENGTHS,
)
CASES["ctc_loss zero_infinity"] = case(
    lambda x, t, n, m: F.ctc_loss(x, t, n, m, zero_infinity=True),
    lambda x, t, n, m: ctc(x, t, n, m, zero_infinity=True),
    SCORES,
    TEXT,
    np.array([8, 1, 3]),
    LENGTHS,
)


test_value_and_gradient = family_test(CASES)
