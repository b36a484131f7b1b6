"""`Executor.train`: the same as a plain loop; checkpoints, resuming bit by bit, early stop, records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import io, nn
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.framework.random import global_seed, seed
from amp_transpiler.paddle.optimizer import Adam, lr
from amp_transpiler.paddle.static.amp import decorate
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

RANDOM = np.random.default_rng(9)
X = RANDOM.normal(size=(20, 3)).astype(np.float32)
Y = (X @ RANDOM.normal(size=(3, 1))).astype(np.float32)


@pytest.fixture(autouse=True)
def _seeded():
    before = global_seed()
    seed(5)
    yield
    seed(before)


class Task:
    """A small network with dropout, in a scope of its own, and shuffled data."""

    def __init__(self, level=None, rate=0.05):
        self.main, self.startup, self.scope = Program(), Program(), Scope()
        self.main.random_seed = self.startup.random_seed = 3
        with program_guard(self.main, self.startup), unique_name.guard():
            self.x, self.y = data("x", [None, 3]), data("y", [None, 1])
            net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
            self.loss = nn.MSELoss()(net(self.x), self.y)
            self.optimizer = Adam(rate)
            if level:
                self.optimizer = decorate(self.optimizer, level=level, dtype="float16")
            self.optimizer.minimize(self.loss)
        self.executor = Executor(CPUPlace())
        self.executor.run(self.startup, scope=self.scope)

    def loader(self, **options):
        return io.DataLoader(io.TensorDataset([X, Y]), batch_size=5, shuffle=True, **options)

    def train(self, epochs, loader=None, **options):
        options = {"scope": self.scope, "feed_list": [self.x, self.y], "optimizer": self.optimizer, **options}
        return self.executor.train(self.main, self.loader() if loader is None else loader, epochs, **options)

    @property
    def values(self):
        return {name: np.array(self.scope[name]) for name in self.scope}


def assert_equal(one, other):
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("level", [None, "O1"])
def test_it_is_a_plain_loop_with_a_record(level):
    ours, plain = Task(level), Task(level)
    seen = []
    log = ours.train(3, callbacks=[lambda step: seen.append(step.step)])
    losses, loader = [], plain.loader()
    for _ in range(3):
        for x, y in loader:
            losses.append(plain.executor.run(plain.main, {"x": x, "y": y}, [plain.loss], scope=plain.scope)[0].item())
    assert [step.loss for step in log.steps] == losses
    assert seen == list(range(1, 13))
    assert losses[-1] < losses[0]
    assert (log.steps[0].loss_scale is not None) == (level is not None)
    assert_equal(ours.values, plain.values)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 5, 8])
def test_a_resumed_training_ends_in_the_same_bits(tmp_path, stop):
    whole = Task("O2")
    whole.train(3)
    first = Task("O2")
    first.train(3, checkpoints=tmp_path, save_every=2, steps=stop)
    second = Task("O2")
    log = second.train(3, checkpoints=tmp_path, save_every=2, plot=tmp_path / "loss.png")
    assert log.steps[0].step == stop + 1
    assert_equal(second.values, whole.values)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["epoch"] for row in rows] == [number // 4 for number in range(12)]
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert second.train(3, checkpoints=tmp_path).steps == []  # there is nothing left to do


def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path):
    whole, killed = Task(), Task()
    whole.train(2)

    def kill(step):
        if step.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.train(2, checkpoints=tmp_path, save_every=3, callbacks=[kill])
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # a line that was being written
    again = Task()
    assert again.train(2, checkpoints=tmp_path, save_every=3).steps[0].step == 7
    assert_equal(again.values, whole.values)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 9))


def test_the_last_checkpoints_are_kept(tmp_path):
    task = Task()
    task.train(3, checkpoints=tmp_path, save_every=2, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "log.jsonl",
        *("step-000000010.json", "step-000000010.safetensors"),
        *("step-000000012.json", "step-000000012.safetensors"),
    ]
    before = task.values
    fresh = Task()
    fresh.train(1, checkpoints=tmp_path, resume=False, steps=1)
    assert any(not np.array_equal(before[name], value) for name, value in fresh.values.items())


def test_it_stops_without_progress(tmp_path):
    values = iter([5.0, 4.0, 4.5, 4.2, 1.0])
    task = Task()
    log = task.train(9, patience=2, evaluate=lambda _: next(values), checkpoints=tmp_path)
    assert len(log) == 4 * 4
    assert task.train(9, patience=2, checkpoints=tmp_path).steps == []
    assert len(Task(rate=1e-30).train(9, [{"x": X, "y": Y}], patience=1)) < 9


def test_a_schedule_that_python_drives_goes_on(tmp_path):
    def task():
        schedule = lr.ReduceOnPlateau(0.05, patience=0, threshold=10.0, threshold_mode="abs")
        return schedule, Task(rate=schedule)

    (schedule, first), (other, second) = task(), task()
    first.train(1, checkpoints=tmp_path, callbacks=[lambda step: schedule.step(step.loss)])
    assert schedule.get_lr() < 0.05
    second.train(1, checkpoints=tmp_path)
    assert other.state_dict() == schedule.state_dict()


@pytest.mark.parametrize(
    "make", [lambda: [{"x": X, "y": Y}], lambda: [(X, Y)], lambda: lambda: iter([[{"x": X, "y": Y}]])]
)
def test_anything_that_yields_feeds_is_a_loader(make):
    assert len(Task().train(2, make())) == 2


def test_progress_is_one_line(capsys):
    Task("O1").train(1, progress=True)
    shown = capsys.readouterr().err
    assert shown.endswith("\n")
    assert f"epoch 1/1 [{'=' * 5}{'.' * 15}] 1/4  step 1  loss " in shown
    assert f"epoch 1/1 [{'=' * 20}] 4/4  step 4  loss " in shown
    assert "  scale " in shown
    assert "  skipped " in shown
    Task().train(1)
    assert capsys.readouterr().err == ""
    Task().train(1, lambda: iter([(X, Y)]), progress=True)
    assert "epoch 1/1  batch 1  step 1  loss " in capsys.readouterr().err


def _damaged(folder):
    task = Task()
    task.train(1, checkpoints=folder)
    (folder / "step-000000004.json").write_text("{}")
    task.train(2, checkpoints=folder)


MISTAKES = {
    "nothing to train": (
        lambda _: Executor(CPUPlace()).train(Program(), []),
        InputError,
        "call an optimizer's minimize",
    ),
    "no batch": (lambda _: Task().train(2, iter([])), InputError, "the loader has no batch"),
    "gone through": (lambda _: Task().train(2, iter([(X, Y)])), InputError, "can be gone through again"),
    "parts": (lambda _: Task().train(1, [(X,)]), InputError, "a batch has 1 parts and feed_list has 2 inputs"),
    "keep": (lambda folder: Task().train(1, checkpoints=folder, keep=0), OptionError, "keep must be 1 or more"),
    "schedule_by": (lambda _: Task().train(1, schedule_by="batch"), OptionError, "schedule_by must be 'step', 'epoch'"),
    "no folder": (lambda _: Task().train(1, save_every=3), OptionError, "needs checkpoints"),
    "an unknown option": (lambda _: Task().train(1, epoch=3), TypeError, "epoch"),
    "a damaged checkpoint": (_damaged, InputError, "no state of a training"),
}


@pytest.mark.parametrize(("make", "kind", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(tmp_path, make, kind, text):
    with pytest.raises(kind, match=text):
        make(tmp_path)


@pytest.mark.parametrize(
    ("by", "want"), [("step", [0.5**n for n in range(8)]), ("epoch", [1.0] * 4 + [0.5] * 4), (None, [1.0] * 8)]
)
def test_schedules_are_stepped(tmp_path, by, want):
    rates, schedule = [], lr.ExponentialDecay(1e-3, 0.5)
    Task(rate=schedule).train(1, schedule_by=by, callbacks=[lambda _: rates.append(schedule())], checkpoints=tmp_path)
    resumed = lr.ExponentialDecay(1e-3, 0.5)
    Task(rate=resumed).train(2, schedule_by=by, callbacks=[lambda _: rates.append(resumed())], checkpoints=tmp_path)
    np.testing.assert_allclose(rates, [1e-3 * factor for factor in want])
