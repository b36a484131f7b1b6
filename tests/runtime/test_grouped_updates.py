"""Updates of equal parameters computed together: the numbers are those of updates one by one, to the bit."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amp_transpiler import nn, optimizer, static
from amp_transpiler.errors import NotFiniteError
from amp_transpiler.paddle import regularizer
from amp_transpiler.paddle.param_attr import ParamAttr
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.assemble import assemble
from amp_transpiler.runtime import compile as compiling, lowering
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.update_passes import CUDA_WORTH

F = nn.functional


def _layers(x, attrs, width=6, depth=4):
    for index in range(depth):
        weight, bias = (ParamAttr(**attrs(index, kind)) for kind in ("w", "b"))
        x = F.tanh(static.nn.fc(x, width, weight_attr=weight, bias_attr=bias))
    return x


@dataclasses.dataclass
class Case:
    """A network and how it is trained.

    Attributes:
        make: makes the optimizer.
        amp: arguments of `decorate`; None: float32.
        attrs: layer and kind ("w" or "b") -> arguments of its `ParamAttr`.
        exact: whether grouped and single updates are the same to the bit; else they sum in another order.
        groups: how many stacks there are at least.
    """

    make: Callable[[], Any]
    amp: dict[str, Any] | None = None
    attrs: Callable[[int, str], dict[str, Any]] = lambda index, kind: {}
    exact: bool = True
    groups: int = 1


O1, O2 = {"level": "O1"}, {"level": "O2", "master_weight": True}
BF16 = {"level": "O2", "dtype": "bfloat16"}
SCALED_BF16 = {**BF16, "init_loss_scaling": 8.0, "use_dynamic_loss_scaling": False}
TORCH, MXNET = {**O2, "scaler": "torch"}, {**O2, "scaler": "mxnet"}


def by_layer(index, kind):
    return {"learning_rate": (1.0, 0.5, 1.0, 2.0)[index]}


def some_decay(index, kind):
    return {"regularizer": regularizer.L2Decay(0.1) if index % 2 else None, "need_clip": index > 0}


CASES = {
    "SGD": Case(lambda: optimizer.SGD(0.1), groups=0),
    "SGD O1": Case(lambda: optimizer.SGD(0.1), O1, groups=0),
    "SGD O2": Case(lambda: optimizer.SGD(0.1), O2),
    "SGD O2 torch": Case(lambda: optimizer.SGD(0.1), TORCH),
    "Momentum": Case(lambda: optimizer.Momentum(0.1)),
    "Momentum O2 decay": Case(lambda: optimizer.Momentum(0.1, weight_decay=0.01), O2),
    "Momentum O2 torch decay": Case(lambda: optimizer.Momentum(0.1, weight_decay=0.01), TORCH),
    "Nesterov O2 mxnet": Case(lambda: optimizer.Momentum(0.1, use_nesterov=True, rescale_grad=0.5), MXNET),
    "Nesterov bf16": Case(lambda: optimizer.Momentum(0.1, use_nesterov=True), BF16),
    "Adam": Case(lambda: optimizer.Adam(0.01), groups=5),
    "Adam O1": Case(lambda: optimizer.Adam(0.01), O1, groups=5),
    "Adam O2": Case(lambda: optimizer.Adam(0.01), O2, groups=5),
    "Adam O2 L1": Case(lambda: optimizer.Adam(0.01, weight_decay=regularizer.L1Decay(0.1)), O2),
    "Adam O2 torch L2": Case(lambda: optimizer.Adam(0.01, weight_decay=0.1), TORCH),
    "Adam O2 without masters": Case(lambda: optimizer.Adam(0.01), {"level": "O2", "master_weight": False}),
    "Adam O2 no epsilon": Case(lambda: optimizer.Adam(0.01, epsilon=0.0), TORCH),
    "Adam bf16 scaled": Case(lambda: optimizer.Adam(0.01), SCALED_BF16),
    "AdamW O2": Case(lambda: optimizer.AdamW(0.01), O2, groups=5),
    "AdamW O2 mxnet": Case(lambda: optimizer.AdamW(0.01, weight_decay=0.1), MXNET),
    "AdamW bf16": Case(lambda: optimizer.AdamW(0.01), BF16),
    "AdamW O2 rates": Case(lambda: optimizer.AdamW(0.01), O2, by_layer),
    "AdamW O2 some decay": Case(lambda: optimizer.AdamW(0.01, apply_decay_param_fun=lambda n: "w_" in n), O2),
    "Adamax O2": Case(lambda: optimizer.Adamax(0.01), O2),
    "Adamax O1 torch": Case(lambda: optimizer.Adamax(0.01), {**O1, "scaler": "torch"}),
    "Lamb": Case(lambda: optimizer.Lamb(0.01), exact=False),
    "Lamb O2": Case(lambda: optimizer.Lamb(0.01), O2, exact=False),
    "schedule O2": Case(
        lambda: optimizer.Adam(optimizer.lr.PolynomialDecay(0.01, 3, end_lr=0.001, steps_per_epoch=1)), O2
    ),
    "by value": Case(lambda: optimizer.Adam(0.01, grad_clip=nn.ClipGradByValue(0.01)), O2),
    "by norm": Case(lambda: optimizer.Adam(0.01, grad_clip=nn.ClipGradByNorm(0.01)), O2, exact=False),
    "by global norm": Case(lambda: optimizer.Adam(0.01, grad_clip=nn.ClipGradByGlobalNorm(0.01)), O2, exact=False),
    "global norm SGD": Case(lambda: optimizer.SGD(0.1, grad_clip=nn.ClipGradByGlobalNorm(0.01)), exact=False, groups=0),
    "some clipped and regularised": Case(
        lambda: optimizer.Momentum(0.1, grad_clip=nn.ClipGradByNorm(0.1)), O2, some_decay, exact=False
    ),
}


class Training:
    """A network of four equal layers and one more, its scope, and the losses of its steps."""

    def __init__(self, case: Case, worth: Any = CUDA_WORTH) -> None:
        self.worth = worth
        with unique_name.guard():
            self.main, startup = static.Program(), static.Program()
            with static.program_guard(self.main, startup):
                x, label = static.data("x", [4, 6]), static.data("label", [4, 1], "int64")
                self.loss = F.cross_entropy(static.nn.fc(_layers(x, case.attrs), 3), label)
                chosen = case.make()
                if case.amp is not None:
                    chosen = static.amp.decorate(chosen, **case.amp)
                self.test = self.main.clone(for_test=True)
                chosen.minimize(self.loss, startup)
        self.optimizer = chosen
        self.scope, self.executor = static.Scope(), static.Executor(CPUPlace())
        self.executor.run(startup, scope=self.scope)
        self.done = 0

    def step(self, scale=1.0, fetch=(), **options):
        rng = np.random.default_rng(self.done)
        self.done += 1
        feed = {"x": (rng.normal(size=(4, 6)) * scale).astype("f"), "label": rng.integers(0, 3, (4, 1))}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiling, "worth_on", lambda place: self.worth)
            fetch = [self.loss, *fetch]
            return self.executor.run(self.main, feed=feed, fetch_list=fetch, scope=self.scope, **options)

    @property
    def stacks(self):
        return {stack.name for step in self.executor._steps._steps.values() for stack in step.stacks}


def assert_same(ours, other, exact=True):
    assert list(ours) == list(other)
    for name in ours:
        if exact:
            np.testing.assert_array_equal(ours[name], other[name], err_msg=name)
        else:
            arrays = (np.asarray(values[name], np.float32) for values in (ours, other))
            np.testing.assert_allclose(*arrays, rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_grouped_updates_are_those_of_each_parameter(name):
    """Five steps, the second and third of which overflow in float16; every value of the scope is compared."""
    case = CASES[name]
    grouped, single = Training(case), Training(case, worth=None)
    overflow = 1e6 if case.amp in (O1, O2, TORCH, MXNET) else 1.0
    for scale in (1.0, overflow, overflow, 1.0, 1.0):
        losses = [training.step(scale)[0] for training in (grouped, single)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=0 if case.exact else 1e-2)
    assert_same(grouped.scope, single.scope, case.exact)
    assert len(grouped.stacks) >= case.groups
    assert not single.stacks


def test_a_group_takes_few_operators():
    """A launch each on a GPU: joining, check, unscaling, AdamW on rows, the parameters; one chain for all powers."""
    training = Training(CASES["AdamW O2"])
    assembled = assemble(training.main, [training.loss.name])
    ready = lowering.ready_to_open(assembled, {"x": (4, 6), "label": (4, 1)}, worth=CUDA_WORTH)
    nodes = [node for node in ready.model.graph if (node.name or "").startswith("group/") and node.op_type != "Reshape"]
    weights = [node for node in nodes if node.outputs[0].shape is not None and 36 in node.outputs[0].shape]
    columns = [node for node in nodes if node.outputs[0].shape is not None and list(node.outputs[0].shape) == [10, 1]]
    assert len(weights) <= 19
    assert len(columns) <= 9
    assert len(nodes) <= 2 * 24 + 9 + 4, "four gathered scalars for the last layer, which is alone"


ADAM = CASES["Adam O2"]


def test_a_checkpoint_has_each_value_by_its_name_and_continues(tmp_path):
    """A file from grouped training is that from single training; either loads into either."""
    grouped, single = Training(ADAM), Training(ADAM, worth=None)
    for training, file in ((grouped, "a"), (single, "b")):
        for _ in range(3):
            training.step()
        static.save(training.main, tmp_path / file, scope=training.scope)
    states = [static.load_program_state(tmp_path / file) for file in "ab"]
    assert sorted(states[0]) == sorted(states[1])
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name])
    later = Training(ADAM)
    static.load(later.main, tmp_path / "b", scope=later.scope)
    later.done = 3
    for training in (grouped, later):
        training.step()
    assert_same(grouped.scope, later.scope)


def test_a_value_is_read_and_written_between_steps():
    grouped, single = Training(ADAM), Training(ADAM, worth=None)
    (name,) = [name for name in single.scope if name.endswith("fc_1.w_0_fp32_master_0_moment1_0")]
    for training in (grouped, single):
        training.step()
        training.scope[name] = training.scope[name] * 2
        training.step()
        assert training.scope.find_var(name).get_tensor().shape() == [6, 6]
    assert_same(grouped.scope, single.scope)


def test_a_value_is_fetched_by_its_name():
    """The value after the run; the other members of its stack stay where they are."""
    grouped, single = Training(ADAM), Training(ADAM, worth=None)
    names = ["fc_2.w_0_fp32_master_0_moment2_0", "fc_1.b_0_fp32_master_0", "fc_0.w_0_fp32_master_0_beta1_pow_acc_0"]
    for fetch in ((), names, names[:1], ()):
        fetched = [training.step(fetch=fetch)[1:] for training in (grouped, single)]
        for ours, other, name in zip(*fetched, fetch, strict=True):
            np.testing.assert_array_equal(ours, other)
            np.testing.assert_array_equal(ours, grouped.scope[name])
    assert_same(grouped.scope, single.scope)


def test_programs_that_share_a_scope():
    """A program that reads masters one by one, and a test program, between grouped steps."""
    grouped, single = Training(ADAM), Training(ADAM, worth=None)
    for training in (grouped, single):
        training.step()
        worth, training.worth = training.worth, None
        training.step(fetch=["fc_0.w_0"])  # compiled for itself, ungrouped
        training.worth = worth
        training.step()
        feed = {"x": np.ones((4, 6), np.float32), "label": np.zeros((4, 1), np.int64)}
        training.optimizer.amp_init(CPUPlace(), scope=training.scope, test_program=training.test)
        training.tested = training.executor.run(
            training.test, feed=feed, fetch_list=[training.loss.name], scope=training.scope
        )
        training.step()
    np.testing.assert_array_equal(grouped.tested, single.tested)
    assert_same(grouped.scope, single.scope)


@pytest.mark.parametrize("reaction", ["skip", "stop"])
def test_the_check_for_infinity_reads_stacks(reaction):
    grouped, single = Training(CASES["Adam"]), Training(CASES["Adam"], worth=None)
    for training in (grouped, single):
        training.step()
        if reaction == "skip":
            training.step(np.nan, not_finite="skip")
        else:
            with pytest.raises(NotFiniteError, match="not finite before the run"):
                training.step(np.nan, not_finite="stop")
        training.step()
    assert_same(grouped.scope, single.scope)
