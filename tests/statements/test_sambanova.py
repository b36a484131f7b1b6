"""Statements of SambaNova's "Compile with mixed precision" that no other test shows."""

import contextlib
import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer
from amp_transpiler.paddle import static, tensor
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.utils import unique_name
from tests import support
from tests.paddle import nets

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
BERT = MODELS / "bert_1layer.onnx"


@pytest.fixture(scope="module")
def presets():
    """A transformer by each preset: the report, and its largest error."""
    feeds = dict(np.load(MODELS / "bert_1layer.inputs.npz"))
    expected = support.run(amp.load(BERT), feeds)
    by_name = {}
    for preset in ("mp0", "mp1", "mp4"):
        report = amp.transpile(BERT, preset=preset, verify=False)
        result = support.run_emulated(report.program, feeds)
        by_name[preset] = (report, max(support.relative(expected[name], result[name]) for name in expected))
    return by_name


def test_presets_trade_accuracy_for_low_precision(presets):
    low = [presets[preset][0].low_nodes for preset in ("mp0", "mp1", "mp4")]
    errors = [presets[preset][1] for preset in ("mp0", "mp1", "mp4")]
    assert low[0] == 0 < low[1] < low[2]
    assert errors[0] == 0 < errors[1] < errors[2]


def test_low_weights_and_results_take_less_memory(presets):
    plain, low = presets["mp0"][0].program, presets["mp4"][0].program
    sizes = [sum(value.const_value.nbytes for value in p.model.graph.initializers.values()) for p in (plain, low)]
    assert sizes[1] < 0.55 * sizes[0]


def training_step(region):
    """Two products and a mean, the second product and the loss in a region, minimized in bfloat16."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        hidden = F.relu(static.nn.fc(static.data("x", [4, 8]), 8, bias_attr=False))
        with region:
            loss = tensor.mean(static.nn.fc(hidden, 4, bias_attr=False))
        amp.decorate(optimizer.SGD(0.1), level="O2", dtype="bfloat16").minimize(loss, startup)
    return main


REGIONS = {"disable_amp": (amp.disable_amp, "FLOAT"), "none": (contextlib.nullcontext, "BFLOAT16")}


@pytest.mark.parametrize("name", REGIONS)
def test_the_backward_pass_runs_in_the_types_of_the_forward_pass(name):
    """Only the forward pass and the loss are wrapped; what is bfloat16 there has bfloat16 gradients."""
    region, second = REGIONS[name]
    main = training_step(region())

    def products(role):
        return sorted(dtype for node in nets.nodes(main, "MatMul", role) for dtype in nets.makes(node))

    assert products("forward") == sorted(["BFLOAT16", second])
    assert products("backward") == sorted(["BFLOAT16", second, second])


@pytest.mark.parametrize("preset", ["mp1", "mp4", "default"])
def test_a_preset_converts_a_training_step_that_goes_on_learning(preset):
    """Forward and backward products; the state stays float32."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        hidden = F.tanh(static.nn.fc(static.data("x", [8, 4]), 8, bias_attr=False))
        loss = F.mse_loss(static.nn.fc(hidden, 1, bias_attr=False), static.data("target", [8, 1]))
        optimizer.SGD(0.1).minimize(loss, startup)
    low = amp.transpile(main, preset=preset, verify=False).program
    assert set(support.dtypes(low, "MatMul")) == {"BFLOAT16"}
    scope, executor = static.Scope(), static.Executor(nets.CPU)
    executor.run(startup, scope=scope)
    feed = {"x": support.array(8, 4), "target": support.array(8, 1, seed=1)}
    losses = [executor.run(low, feed, [loss.name], scope=scope)[0].item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert {value.dtype.name for value in scope.values()} == {"float32"}


@pytest.mark.parametrize("copy", [False, True], ids=["no copy", "--fp32-params"])
def test_small_updates_of_bfloat16_parameters_are_lost_without_the_copy(copy):
    """2**-11 is less than half a step of bfloat16 below 1/2; eight of them are more."""
    keywords = {"fp32_params": True} if copy else {"master_weight": False}
    net = nets.one_layer(optimizer.SGD(2.0**-10), level="O2", dtype="bfloat16", **keywords)
    for _ in range(8):
        net.run(1.0)
    assert (net.scope["w"].astype(np.float32) != 0.5).all() == copy
    if copy:
        np.testing.assert_array_equal(net.scope["w"], net.scope[net.master].astype(net.scope["w"].dtype))
