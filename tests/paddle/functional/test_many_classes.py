"""Losses for very many classes, transducers and beams, against torch's or the definition written as a loop."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(23)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


# ---- transducers ----


def transducer(scores, labels, steps, lengths, blank=0, factor=0.0):
    """The definition: a sum over all cells before, one by one."""
    log = torch.log_softmax(scores, 3)
    losses = []
    for i in range(len(scores)):
        alpha = {(0, 0): torch.zeros(())}
        for t in range(steps[i]):
            for u in range(lengths[i] + 1):
                ways = []
                if t:
                    ways.append(alpha[t - 1, u] + log[i, t - 1, u, blank])
                if u:
                    said = log[i, t, u - 1, labels[i, u - 1]]
                    ways.append(alpha[t, u - 1] + said * (1 + factor) - (said * factor).detach())
                if ways:
                    alpha[t, u] = torch.logsumexp(torch.stack(ways), 0)
        end = (int(steps[i]) - 1, int(lengths[i]))
        losses.append(-(alpha[end] + log[i, end[0], end[1], blank]))
    return torch.stack(losses)


SCORES = normal(3, 4, 4, 5)
TEXT = np.array([[1, 2, 2], [3, 1, 4], [4, 4, 1]])
STEPS, LENGTHS = np.array([4, 2, 3]), np.array([3, 2, 0])
FAST = 0.25

# ---- trees, margins, clusters ----

FEATURES, LABEL = normal(6, 4), np.array([0, 6, 3, 5, 2, 1])
DECISIONS, BIASES = normal(6, 4), normal(6, 1)


def tree(x, label, weight, bias=None, classes=7):
    losses = []
    for row, c in zip(x, label.tolist(), strict=True):
        node, total = c + classes, torch.zeros(())
        while node > 1:
            score = row @ weight[node // 2 - 1] + (0 if bias is None else bias[node // 2 - 1, 0])
            total = total + TF.softplus(score) - score * (node & 1)
            node //= 2
        losses.append(total)
    return torch.stack(losses)[:, None]


COSINES = np.clip(normal(5, 6) * 0.4, -0.95, 0.95)
CLASS = np.array([0, 3, 2, 5, 5])


def margins(x, label, m1, m2, m3, scale):
    true_class = TF.one_hot(label, 6).bool()
    moved = torch.where(true_class, torch.cos(m1 * torch.acos(x) + m2) - m3, x) * scale
    return TF.cross_entropy(moved, label, reduction="none")[:, None], torch.softmax(moved, 1)


CUTOFFS = [2, 5, 9]
HEAD, TAILS = normal(4, 4), [normal(4, 3), normal(3, 3), normal(4, 2), normal(2, 4)]
MANY = np.array([0, 8, 4, 1, 2, 6])


def clusters(x, label, head, *tails):
    layer = torch.nn.AdaptiveLogSoftmaxWithLoss(4, 9, CUTOFFS[:2], 2.0)
    weights = {"head.weight": head, **{f"tail.{i // 2}.{i % 2}.weight": tail for i, tail in enumerate(tails)}}
    return tuple(torch.func.functional_call(layer, {name: weight.T for name, weight in weights.items()}, (x, label)))


QUERY, KEY, VALUE = normal(2, 3, 4, 5), normal(2, 6, 2, 5), normal(2, 6, 2, 5)
TABLE = normal(7, 3)
ROWS = np.array([[0, 2, 2], [6, 0, 2]])


def attention(q, k, v, scale=None):
    turned = (part.transpose(1, 2) for part in (q, k, v))
    return TF.scaled_dot_product_attention(*turned, scale=scale, enable_gqa=True).transpose(1, 2)


def packed(qkv):
    q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
    pieces = [
        TF.scaled_dot_product_attention(*(p.transpose(1, 2) for p in (q[:, :, g], k, v)), is_causal=True)
        for g in range(q.shape[2])
    ]
    return torch.cat([piece.transpose(1, 2) for piece in pieces], 2)


def shortened(x, weight, longest):
    rows = weight[x]
    length = rows.norm(dim=-1, keepdim=True).detach()
    return torch.where(length > longest, rows * (longest / (length + 1e-7)), rows)


CASES = {
    "rnnt_loss": case(
        lambda x, t, n, m: F.rnnt_loss(x, t, n, m, fastemit_lambda=0.0, reduction="none"),
        transducer,
        SCORES,
        TEXT,
        STEPS,
        LENGTHS,
        fixed=True,
    ),
    "rnnt_loss mean": case(
        lambda x, t, n, m: F.rnnt_loss(x, t, n, m, fastemit_lambda=FAST),
        lambda x, t, n, m: transducer(x, t, n, m, factor=FAST).mean(),
        SCORES,
        TEXT,
        STEPS,
        LENGTHS,
        fixed=True,
    ),
    "rnnt_loss blank": case(
        lambda x, t, n, m: F.rnnt_loss(x, t - 1, n, m, 4, 0.0, "sum"),
        lambda x, t, n, m: transducer(x, t - 1, n, m, 4).sum(),
        SCORES,
        TEXT,
        STEPS,
        LENGTHS,
        fixed=True,
    ),
    "hsigmoid_loss": case(lambda x, y, w: F.hsigmoid_loss(x, y, 7, w), tree, FEATURES, LABEL, DECISIONS),
    "hsigmoid_loss bias": case(
        lambda x, y, w, c: F.hsigmoid_loss(x, y, 7, w, c),
        tree,
        FEATURES,
        LABEL,
        DECISIONS,
        BIASES,
    ),
    "hsigmoid_loss own tree": case(
        lambda x, y, w, t, c: F.hsigmoid_loss(x, y, 7, w, path_table=t, path_code=c),
        lambda x, _, w, t, c: (
            (
                (TF.softplus((w[t.clamp(0)] @ x[:, :, None])[..., 0]) - (w[t.clamp(0)] @ x[:, :, None])[..., 0] * c)
                * (t >= 0)
            )
            .sum(1, keepdim=True)
            .float()
        ),
        FEATURES,
        LABEL,
        DECISIONS,
        np.array([[0, 2, -1], [1, -1, -1], [0, 1, 5], [3, 4, -1], [0, -1, -1], [5, 2, 1]]),
        np.array([[0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1]]),
    ),
    "margin_cross_entropy": case(
        lambda x, y: F.margin_cross_entropy(x, y, scale=8.0, return_softmax=True, reduction=None),
        lambda x, y: margins(x, y, 1.0, 0.5, 0.0, 8.0),
        COSINES,
        CLASS,
        fixed=True,
        tolerance=1e-4,
    ),
    "margin_cross_entropy three": case(
        lambda x, y: F.margin_cross_entropy(x, y.reshape([-1, 1]), 1.1, 0.2, 0.3, 8.0),
        lambda x, y: margins(x, y, 1.1, 0.2, 0.3, 8.0)[0].mean(),
        COSINES,
        CLASS,
        fixed=True,
        tolerance=1e-4,
    ),
    "adaptive_log_softmax_with_loss": case(
        lambda x, y, h, a, b, c, d: F.adaptive_log_softmax_with_loss(x, y, h, [[a, b], [c, d]], CUTOFFS),
        clusters,
        normal(6, 4),
        MANY,
        HEAD,
        *TAILS,
        fixed=True,
    ),
    "gather_tree": case(
        F.gather_tree,
        lambda ids, parents: torch.from_numpy(walked(ids.numpy(), parents.numpy())),
        RANDOM.integers(0, 9, (4, 2, 3)),
        RANDOM.integers(0, 3, (4, 2, 3)),
        fixed=True,
    ),
    "attention scale": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7, enable_gqa=True),
        lambda q, k, v: attention(q, k, v, 0.7),
        QUERY,
        KEY,
        VALUE,
        fixed=True,
    ),
    "attention of groups": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        attention,
        QUERY,
        KEY,
        VALUE,
        fixed=True,
    ),
    "flash_attn_qkvpacked": case(
        lambda x: F.flash_attn_qkvpacked(x, causal=True)[0], packed, normal(2, 4, 5, 2, 3), fixed=True
    ),
    "embedding max_norm": case(
        lambda x, w: F.embedding(x, w, max_norm=1.0), lambda x, w: shortened(x, w, 1.0), ROWS, TABLE
    ),
    "embedding scale_grad_by_freq": case(
        lambda x, w: F.embedding(x, w, scale_grad_by_freq=True),
        lambda x, w: TF.embedding(x, w, scale_grad_by_freq=True),
        ROWS,
        TABLE,
    ),
}


def walked(ids, parents):
    walk = ids.copy()
    for row, beam in np.ndindex(ids.shape[1:]):
        place = beam
        for step in reversed(range(len(ids))):
            walk[step, row, beam] = ids[step, row, place]
            place = parents[step, row, place]
    return walk


test_value_and_gradient = family_test(CASES)


def run(build, feeds):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(paddle.static.Scope()):
        fetched = build({n: paddle.static.data(n, a.shape, str(a.dtype)) for n, a in feeds.items()})
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        return exe.run(main, feed=feeds, fetch_list=list(fetched))


def test_the_probabilities_of_a_tree_of_classes_add_up_to_one():
    rows = np.repeat(FEATURES[:1], 7, 0)
    (loss,) = run(
        lambda x: [paddle.nn.HSigmoidLoss(4, 7)(x["x"], x["y"])], {"x": rows, "y": np.arange(7, dtype=np.int64)}
    )
    np.testing.assert_allclose(np.exp(-loss).sum(), 1.0, rtol=1e-5)


def test_a_layer_of_clusters_of_classes():
    def build(x):
        layer = paddle.nn.AdaptiveLogSoftmaxWithLoss(4, 9, [2, 5], div_value=2.0, head_bias=True)
        return [*layer(x["x"], x["y"]), layer.log_prob(x["x"]), layer.predict(x["x"])]

    path_loss, loss, log, best = run(build, {"x": FEATURES, "y": MANY})
    np.testing.assert_allclose(np.exp(log).sum(1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(path_loss, log[np.arange(6), MANY], rtol=1e-5)
    np.testing.assert_allclose(loss, -path_loss.mean(), rtol=1e-5)
    np.testing.assert_array_equal(best, log.argmax(1))


@pytest.mark.parametrize("samples", [2, 6], ids=["fewer than the labels", "more"])
def test_classes_are_sampled_around_the_labels(samples):
    label = np.array([11, 5, 1, 3, 11], np.int64)
    places, classes = run(lambda x: F.class_center_sample(x["y"], 20, samples), {"y": label})
    assert len(classes) == max(samples, 4)
    assert (np.diff(classes) > 0).all()
    np.testing.assert_array_equal(classes[places], label)


def test_mistakes():
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x, y = paddle.static.data("x", [2, 4]), paddle.static.data("y", [2], "int64")
        scores = paddle.static.data("scores", [2, 4, 3, 5])
        with pytest.raises(InputError, match=r"labels must be of shape \[batch, 2\]"):
            F.rnnt_loss(scores, paddle.static.data("t", [2, 3], "int64"), y, y)
        with pytest.raises(OptionError, match="both path_table and path_code"):
            F.hsigmoid_loss(x, y, 7, x, path_table=y)
        with pytest.raises(InputError, match="say 2 clusters"):
            F.adaptive_log_softmax_with_loss(x, y, x, [], [1, 2, 3])
        with pytest.raises(OptionError, match="drawn of 4 classes"):
            F.class_center_sample(y, 4, 5)
        with pytest.raises(OptionError, match="cutoffs must ascend"):
            paddle.nn.AdaptiveLogSoftmaxWithLoss(4, 9, [5, 2])
