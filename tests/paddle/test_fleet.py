"""`paddle.distributed.fleet`: what a strategy wraps an optimizer in, and a run of one process."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle import distributed, static
from amp_transpiler.paddle.distributed import fleet
from amp_transpiler.paddle.incubate.wrappers import GradientMergeOptimizer
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision

X = np.random.default_rng(2).normal(size=(8, 4)).astype("f")


@pytest.fixture(autouse=True)
def _alone_again():
    yield
    distributed.destroy_process_group()


def strategy(**settings):
    chosen = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(chosen, name, value)
    return chosen


def test_a_strategy_wraps_an_optimizer():
    settings = strategy(
        amp=True,
        amp_configs={"custom_black_list": ["tanh"], "init_loss_scaling": 8.0, "use_pure_fp16": True},
        gradient_merge=True,
        gradient_merge_configs={"k_steps": 2, "avg": True},
        fuse_all_reduce_ops=True,  # Paddle's own communication
    )
    wrapped = fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), settings)
    assert isinstance(wrapped, GradientMergeOptimizer)
    assert wrapped.k_steps == 2
    assert isinstance(wrapped.inner_optimizer, OptimizerWithMixedPrecision)
    plain = paddle.optimizer.SGD(0.1)
    assert fleet.distributed_optimizer(plain, strategy()) is plain


def test_lars_and_lamb_replace_their_optimizers():
    lars = fleet.distributed_optimizer(
        paddle.optimizer.Momentum(0.1, 0.8), strategy(lars=True, lars_configs={"lars_coeff": 0.01})
    )
    assert (type(lars).__name__, lars.momentum, lars.lars_coeff) == ("LarsMomentum", 0.8, 0.01)
    configs = {"lamb_weight_decay": 0.02, "exclude_from_weight_decay": ["bias"]}
    lamb = fleet.distributed_optimizer(paddle.optimizer.Adam(0.1, beta1=0.7), strategy(lamb=True, lamb_configs=configs))
    assert (type(lamb).__name__, lamb.beta1, lamb.lamb_weight_decay) == ("Lamb", 0.7, 0.02)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sharding": True}, "shard_optimizer"),
        ({"amp": True, "amp_configs": {"speed": 1}}, "amp_configs has no speed"),
        ({"lars": True}, "needs a Momentum optimizer, got Adam"),
    ],
)
def test_what_is_not_here_is_refused(settings, words):
    with pytest.raises(OptionError, match=words):
        fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), strategy(**settings))


def test_a_script_of_one_process(tmp_path):
    fleet.init(is_collective=True, strategy=strategy(amp=True))
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        x = static.data("x", [None, 4])
        y = static.nn.fc(x, 2)
        loss = paddle.mean(y * y)
        optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.1))
        optimizer.minimize(loss)
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        optimizer.amp_init(exe.place)
        losses = [float(exe.run(main, {"x": X}, [loss])[0]) for _ in range(5)]
        fleet.save_inference_model(exe, tmp_path, ["x"], [y], main)
        fleet.save_persistables(exe, tmp_path / "values", main)
        weight = static.global_scope()["fc_0.w_0"]
        static.global_scope()["fc_0.w_0"] = weight * 0
        fleet.load_persistables(exe, tmp_path / "values", main)
        np.testing.assert_array_equal(static.global_scope()["fc_0.w_0"], weight)
    assert losses[-1] < losses[0]
    assert (tmp_path / "model.onnx").exists()
    assert (fleet.worker_index(), fleet.worker_num(), fleet.is_first_worker(), fleet.is_server()) == (0, 1, True, False)
    fleet.barrier_worker()


def test_parameter_servers_are_refused():
    with pytest.raises(OptionError, match="no parameter servers"):
        fleet.init(is_collective=False)
    with pytest.raises(OptionError, match="is_collective=True"):
        fleet.PaddleCloudRoleMaker(is_collective=False)
