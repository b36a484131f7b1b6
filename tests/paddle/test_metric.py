"""Measures over batches against numpy; `paddle.amp`'s settings."""

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import amp, metric, nn, static
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.optimizer import SGD
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision
from amp_transpiler.program.program import Program

RANDOM = np.random.default_rng(8)
SCORES = RANDOM.uniform(size=(3, 40, 5))
LABELS = RANDOM.integers(0, 5, (3, 40, 1))


@pytest.mark.parametrize("one_hot", [False, True])
def test_accuracy_of_all_batches(one_hot):
    accuracy, hits = metric.Accuracy(topk=(1, 3)), []
    for scores, labels in zip(SCORES, LABELS, strict=True):
        target = np.eye(5)[labels[:, 0]] if one_hot else labels
        batch = accuracy.update(accuracy.compute(scores, target))
        order = np.argsort(-scores, axis=1) == labels
        hits.append([order[:, 0].mean(), order[:, :3].any(1).mean()])
        np.testing.assert_allclose(batch, hits[-1])
    np.testing.assert_allclose(accuracy.accumulate(), np.mean(hits, 0))
    assert accuracy.name() == ["acc_top1", "acc_top3"]
    accuracy.reset()
    assert accuracy.accumulate() == [0.0, 0.0]
    single = metric.Accuracy()
    single.update(single.compute(SCORES[0], LABELS[0, :, 0]))
    assert single.accumulate() == pytest.approx(hits[0][0])


def test_precision_recall_and_area():
    scores, truth = RANDOM.uniform(size=200), (RANDOM.uniform(size=200) < 0.4).astype(np.int64)
    measures = [metric.Precision(), metric.Recall(), metric.Auc()]
    for part in (slice(0, 90), slice(90, 200)):
        for measure in measures:
            measure.update(scores[part], truth[part][:, None])
    said = scores > 0.5
    bins = (scores * 4095).astype(int)
    ahead, behind = bins[truth == 1][:, None], bins[truth == 0][None]
    wanted = [truth[said].mean(), said[truth == 1].mean(), ((ahead > behind) + 0.5 * (ahead == behind)).mean()]
    np.testing.assert_allclose([measure.accumulate() for measure in measures], wanted)
    assert [measure.name() for measure in measures] == ["precision", "recall", "auc"]
    for measure in measures:
        measure.reset()
        assert measure.accumulate() == 0.0


def test_mistakes_in_measures_are_named():
    with pytest.raises(InputError, match="2 predictions, but 3 labels"):
        metric.Precision().update(np.zeros(2), np.zeros(3))
    with pytest.raises(InputError, match="must be probabilities"):
        metric.Auc().update(np.array([2.0]), np.array([1]))
    with pytest.raises(OptionError, match="curve must be 'ROC'"):
        metric.Auc("PR")
    with pytest.raises(OptionError, match="topk must be"):
        metric.Accuracy(0)
    assert metric.accuracy is static.accuracy


def test_a_scaler_is_settings_for_decorate():
    scaler = amp.GradScaler(init_loss_scaling=128.0, incr_every_n_steps=7)
    scaler.set_decr_ratio(0.25)
    assert (scaler.get_init_loss_scaling(), scaler.get_incr_every_n_steps(), scaler.is_enable()) == (128.0, 7, True)
    decorated = amp.decorate(SGD(0.1), level="O1", scaler=scaler)
    assert decorated.options.init_loss_scaling == 128.0
    assert (decorated.options.rule.incr_every_n_steps, decorated.options.rule.decr_ratio) == (7, 0.25)
    assert not amp.decorate(SGD(0.1), level="O1", scaler=amp.GradScaler(enable=False)).options.dynamic
    with pytest.raises(OptionError, match="no eager mode"):
        scaler.scale(3)
    with pytest.raises(OptionError, match="no eager mode"), amp.auto_cast():
        pass
    with amp.auto_cast(False):
        pass


def test_a_network_and_its_optimizer_are_decorated_together():
    with program_guard(Program(), Program()):
        net = nn.Linear(2, 2)
        same, decorated = amp.decorate(models=net, optimizers=SGD(0.1), level="O2", dtype="bfloat16")
        assert same is net
        assert isinstance(decorated, OptimizerWithMixedPrecision)
        assert (decorated.options.level, decorated.options.dtype) == ("O2", "bfloat16")
        nets, several = amp.decorate([net], [SGD(0.1)])
        assert nets == [net]
        assert several[0].options.level == "O1"
        assert amp.decorate(net) is net
        with pytest.raises(OptionError, match="excluded_layers"):
            amp.decorate(net, SGD(0.1), excluded_layers=[net])
        decorated.minimize(nn.MSELoss()(net(data("x", [4, 2])), data("y", [4, 2])))
    assert isinstance(amp.is_float16_supported(), bool)
    assert amp.is_bfloat16_supported("gpu:0")


def test_default_lists_of_operators_know_paddles_names():
    white, black = amp.white_list(), amp.black_list()
    assert white.keys() == black.keys() == {"float16", "bfloat16"}
    for dtype in white:
        assert white[dtype].keys() == black[dtype].keys() == {"OD", "O1", "O2"}
        assert all(name in white[dtype][level] for name in ("conv2d", "matmul_v2") for level in ("OD", "O1", "O2"))
        assert all(name not in white[dtype]["O1"] for name in ("log", "elementwise_add"))
        assert "softmax" in black[dtype]["O1"]
        assert "softmax" not in black[dtype]["O2"]
        assert all(
            name in black[dtype][level] for name in ("bilinear_interp_v2", "lookup_table") for level in ("O1", "O2")
        )
        assert not black[dtype]["OD"]
