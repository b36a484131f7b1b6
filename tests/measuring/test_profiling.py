"""`profile_step`: one training step or one run, timed and counted, without a trace in the scope."""

import numpy as np
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.errors import InputError
from amp_transpiler.paddle.utils import unique_name
from tests.support import array, parse

CPU = amp.CPUPlace()
FEED = {"x": array(32, 16)}


def trained(rows=32, **decorated):
    """A started training step of one linear layer with Adam; its weight is 16 x 16."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [rows, 16])
        loss = F.mse_loss(F.relu(static.nn.fc(x, 16, bias_attr=False)), x)
        optimizer = amp.optimizer.Adam(0.01)
        (amp.decorate(optimizer, **decorated) if decorated else optimizer).minimize(loss, startup)
    static.Executor(CPU).run(startup, scope=scope)
    return main, loss, scope


def test_a_training_step_is_measured_and_counted():
    main, loss, scope = trained()
    profile = amp.profile_step(main, FEED, [loss], CPU, scope=scope, runs=4, warmup=1)
    assert (profile.place, profile.runs, profile.memory) == ("CPU", 4, "resident")
    assert profile.milliseconds > 0
    assert profile.alive_bytes == amp.live_bytes(main, [loss.name]) > 0
    assert profile.kept_bytes == amp.kept_bytes(main, [loss.name]) > 0
    assert profile.peak_bytes is None or profile.peak_bytes >= 0
    assert (profile.emulated, profile.note) == (False, "")
    assert profile.nodes >= 10


def test_sizes_that_the_program_leaves_open_are_those_of_the_feed():
    main, loss, scope = trained(rows=None)
    few, many = (
        amp.profile_step(main, {"x": array(rows, 16)}, [loss], CPU, scope=scope, runs=1).alive_bytes
        for rows in (32, 3200)
    )
    assert few < many / 10


def test_the_scope_and_the_program_stay_as_they_are():
    main, loss, scope = trained()
    before, version = {name: np.array(scope[name]) for name in scope}, main.version
    amp.profile_step(main, FEED, [loss.name], CPU, scope=scope, runs=2, warmup=1)
    assert main.version == version
    assert before.keys() == dict(scope).keys()
    assert all(np.array_equal(before[name], scope[name]) for name in before)


def test_low_precision_is_counted_and_said_to_be_emulated():
    (plain_main, plain_loss, scope), (main, loss, other_scope) = trained(), trained(policy="torch")
    plain = amp.profile_step(plain_main, FEED, [plain_loss], CPU, scope=scope)
    with static.scope_guard(other_scope):  # the current scope unless given
        low = amp.profile_step(main, FEED, [loss], CPU)
    assert low.casts > plain.casts == 1, "Adam counts steps in integers"
    assert low.emulated
    assert "emulated" in str(low)
    assert f"{low.nodes} nodes" in str(low)


GRAPH = "(float[n,16] x) => (float[n,16] y) { h = MatMul (x, w) y = Relu (h) }"


@pytest.mark.parametrize("kind", ["proto", "file", "program"])
def test_a_model_is_profiled(kind, tmp_path):
    model = parse(GRAPH, w=array(16, 16))
    amp.save(model, tmp_path / "model.onnx")
    source = {"proto": model, "file": tmp_path / "model.onnx", "program": amp.load(model)}[kind]
    profile = amp.profile_step(source, FEED, place=CPU, runs=1, warmup=0)
    assert (profile.runs, profile.nodes, profile.kept_bytes) == (1, 2, 0)
    assert profile.alive_bytes == 3 * 4 * 32 * 16, "the input is alive all the time"
    fetched = amp.profile_step(source, FEED, ["h"], CPU, runs=1, warmup=0)
    assert fetched.nodes == 1


def test_a_size_that_depends_on_values_is_not_counted_and_named():
    model = parse("(float[n,16] x) => (int64[2,m] y) { y = NonZero (x) }")
    profile = amp.profile_step(model, FEED, place=CPU, runs=1, warmup=0)
    assert profile.alive_bytes is profile.kept_bytes is None
    assert "'y'" in profile.note
    assert "unknown" in str(profile)


def test_mistakes_are_named():
    main, loss, _ = trained()
    with pytest.raises(InputError, match="run the startup program first"):
        amp.profile_step(main, FEED, [loss], CPU, scope=static.Scope())
    with pytest.raises(InputError, match="nothing"):
        amp.profile_step(parse(GRAPH, w=array(16, 16)), FEED, ["nothing"], CPU)
    with pytest.raises(InputError, match="x"):
        amp.profile_step(parse(GRAPH, w=array(16, 16)), {}, place=CPU)
