"""`paddle.amp.debugging` of static programs: what tensors hold, where infinity comes from, what operators run in."""

import csv

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError, NotFiniteError, OptionError, OutputError
from amp_transpiler.paddle.static.tensor_stats import stats_of

debugging = paddle.amp.debugging
Mode = debugging.DebugMode
X = np.array([[1.0, -2.0, 3.0, 0.5], [0.0, 1.5, -1.0, 2.0]], np.float32)
LABELS = np.array([[0], [2]])


@pytest.fixture(autouse=True)
def off():
    yield
    debugging.disable_tensor_checker()


class Net:
    """A classifier whose input goes through a logarithm, so that a number below zero is NaN."""

    def __init__(self, look=lambda h: None, layer=None, level="O0"):
        self.scope = paddle.static.Scope()
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.main.random_seed = self.startup.random_seed = 3
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            x, y = paddle.static.data("x", [None, 4]), paddle.static.data("y", [None, 1], "int64")
            h = paddle.log(x + 3.0) if layer is None else layer()(x)
            self.looked = look(h)
            self.h, self.loss = h.name, F.cross_entropy(F.dropout(paddle.static.nn.fc(h, 3), 0.2), y)
            optimizer = paddle.optimizer.Adam(0.1)
            if level != "O0":
                optimizer = paddle.static.amp.decorate(optimizer, level=level, init_loss_scaling=8.0)
            optimizer.minimize(self.loss)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(self.startup, scope=self.scope)

    def run(self, x=X, fetch=()):
        return self.executor.run(self.main, {"x": x, "y": LABELS}, [self.loss, *fetch], scope=self.scope)

    def state(self):
        return {name: np.array(self.scope[name]) for name in self.scope}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


BAD = X - 2.0  # its smallest element makes log(-1)


@pytest.mark.parametrize(
    ("values", "counts", "numbers"),
    [
        ([1.0, 2.0, 0.0], [0, 0, 1], [2.0, 0.0, 1.0]),
        ([np.nan, 1.0, 0.0, 0.0], [1, 0, 2], None),
        ([np.inf, 1.0, -np.inf], [0, 2, 0], None),
        ([-3.0], [0, 0, 0], [-3.0, -3.0, -3.0]),
        ([0.0, 0.0], [0, 0, 2], [0.0, 0.0, 0.0]),
        ([np.nan, np.nan, np.inf], [2, 1, 0], None),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_check_numerics_computes_what_a_tensor_holds(values, counts, numbers, dtype):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [None], dtype)
        stats, held = debugging.check_numerics(x, "log", "x", Mode.CHECK_NAN_INF)
    got, found = paddle.static.Executor(paddle.CPUPlace()).run(main, {"x": np.array(values, dtype)}, [stats, held])
    assert (got.dtype, found.dtype, got.tolist()) == (np.int64, np.float32, counts)
    if numbers is not None:
        assert found.tolist() == numbers


def test_check_numerics_stops_a_run_before_it_changes_anything():
    net = Net(lambda h: debugging.check_numerics(h, "my_op", "hidden"))
    net.run()
    before = net.state()
    with pytest.raises(NotFiniteError, match=r"my_op made infinity or NaN: 'hidden'.*1 NaN and 1 infinite of 8"):
        net.run(BAD)
    assert same(before, net.state())


def test_looking_changes_nothing_that_is_computed():
    plain, looked = Net(), Net(lambda h: debugging.check_numerics(h, "log", "h", Mode.CHECK_NAN_INF))
    for _ in range(3):
        assert plain.run() == looked.run()


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize(
    ("mode", "x", "shown"),
    [
        (Mode.CHECK_NAN_INF, X, 0),
        (Mode.CHECK_NAN_INF, BAD, "op=log"),
        (Mode.CHECK_ALL_FOR_OVERFLOW, X, 0),
        (Mode.CHECK_ALL_FOR_OVERFLOW, X * 1e5, "op=elementwise_add"),
        (Mode.CHECK_ALL, X, "op=log"),
    ],
)
def test_the_tensor_checker_shows(mode, x, shown, level, capsys):
    net = Net(level=level)
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, mode))
    net.run(x)
    lines = capsys.readouterr().out.splitlines()
    if shown:
        assert any(shown in line and line.startswith("[PRECISION]") for line in lines)
    else:
        assert not lines


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({"checked_op_list": ["log"]}, True),
        ({"checked_op_list": ["softmax"]}, False),
        ({"checked_op_list": ["matmul"]}, True),
        ({"skipped_op_list": ["log", "matmul_v2", "elementwise_add"]}, False),
        ({"skipped_op_list": ["relu"]}, True),
        ({"checked_op_list": ["log", "matmul"], "skipped_op_list": ["matmul"]}, True),
    ],
)
def test_operators_are_chosen_by_paddles_names(settings, is_shown, capsys):
    """The logarithm makes NaN, which the product and the addition after it hand on."""
    net = Net()
    wanted = settings.get("checked_op_list", [])
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_NAN_INF, **settings))
    net.run(BAD)
    ops = {line.partition("op=")[2].partition(",")[0] for line in capsys.readouterr().out.splitlines()}
    skipped = set(settings.get("skipped_op_list", []))
    assert not ops & skipped
    if wanted:
        assert bool(ops) is is_shown
    else:
        assert ("log" in ops) is is_shown


@pytest.mark.parametrize("settings", [{"checked_op_list": ["log"]}, {"debug_step": [0, 9]}, {"output_dir": "logs"}])
def test_other_settings_stop_a_run_too(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = Net()
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, **settings))
    net.run()
    before = net.state()
    with pytest.raises(NotFiniteError, match="the operator log made"):
        net.run(BAD)
    assert same(before, net.state())
    debugging.disable_tensor_checker()
    net.run(BAD)


@pytest.mark.parametrize("again", [False, True])
def test_steps_are_counted(again, capsys):
    net, seen = Net(), []
    config = debugging.TensorCheckerConfig(True, Mode.CHECK_ALL, debug_step=[1, 3])
    debugging.enable_tensor_checker(config)
    for _ in range(4):
        if again:  # as Paddle's loops have it
            debugging.enable_tensor_checker(config)
        net.run()
        seen.append(bool(capsys.readouterr().out))
        if again:
            debugging.disable_tensor_checker()
    assert seen == [False, True, True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"debug_mode": 3}, "debug_mode is a DebugMode"),
        ({"checked_op_list": "log"}, "checked_op_list is a list"),
        ({"skipped_op_list": [1]}, "skipped_op_list is a list"),
        ({"debug_step": [3, 1]}, "debug_step is two whole numbers"),
        ({"debug_step": [1]}, "debug_step is two whole numbers"),
        ({"debug_step": [-1, 2]}, "debug_step is two whole numbers"),
    ],
)
def test_settings_without_meaning(settings, message):
    with pytest.raises(OptionError, match=message):
        debugging.TensorCheckerConfig(True, **settings)


def test_an_operator_that_the_program_does_not_have_is_told(caplog):
    net = Net()
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_ALL, checked_op_list=["conv2d"]))
    net.run()
    net.run()
    assert [record.getMessage() for record in caplog.records if "no operator 'conv2d'" in record.getMessage()] != []


class Layer(paddle.nn.Layer):
    @debugging.check_layer_numerics
    def forward(self, x):
        return paddle.log(paddle.multiply(x, x) - 0.2)


def test_a_layer_is_checked():
    net = Net(layer=Layer)
    net.run(X + 4.0)
    before = net.state()
    with pytest.raises(NotFiniteError, match="operator log"):
        net.run(X)
    with pytest.raises(NotFiniteError, match=r"Layer .its input.*'x'"):
        net.run(X * np.float32(np.nan))
    assert same(before, net.state())


def test_a_layer_without_a_tensor():
    with pytest.raises(InputError, match="must be a variable, got nothing"):
        Layer()()


def logged(folder, level, x):
    net = Net(level=level)
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_ALL, output_dir=str(folder)))
    net.run(x)
    net.run(x)
    debugging.disable_tensor_checker()


def test_accuracy_is_compared(tmp_path):
    logged(tmp_path / "a", "O0", X)
    logged(tmp_path / "b", "O2", X)
    debugging.compare_accuracy(tmp_path / "a", tmp_path / "b", tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    log = [row for row in rows if row["op"] == "log"]
    assert [row["occurrence"] for row in log] == ["0", "1"]
    assert all(float(row["first_max"]) == pytest.approx(float(row["second_max"]), rel=2e-3) for row in log)
    assert float(log[0]["first_max"]) == pytest.approx(np.log(6.0), rel=1e-5)
    assert {row["second_dtype"] for row in rows} >= {"fp16", "fp32"}


def test_logs_are_missing_or_foreign(tmp_path):
    with pytest.raises(InputError, match=r"has no worker_\*.log"):
        debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.csv")
    (tmp_path / "worker_cpu.0.log").write_text("hello\n")
    with pytest.raises(InputError, match=r"line 1 of worker_cpu\.0\.log"):
        debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.csv")


@pytest.mark.parametrize(
    "array",
    [X, X[:0], np.where(X == 1, np.inf, X).astype(np.float32), X.astype(np.float16), np.float32([np.nan, 1e30])],
)
def test_a_line_is_read_back(array, tmp_path):
    (tmp_path / "worker_cpu.0.log").write_text(f"{stats_of(array, 'a op', 'a tensor')}\n")
    debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as stream:
        [row] = csv.DictReader(stream)
    wanted = stats_of(array, "a op", "a tensor")
    assert (row["tensor"], row["first_numel"], row["first_num_nan"]) == (
        "a tensor",
        str(array.size),
        str(wanted.num_nan),
    )


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_operators_that_run_are_counted(level, capsys):
    net = Net(level=level)
    with debugging.collect_operator_stats():
        net.run()
        net.run()
    table = capsys.readouterr().out
    [line] = [line for line in table.splitlines() if line.startswith("  matmul_v2 ")]
    fp16, _, fp32, _ = (int(cell) for cell in line.split("|")[1:])
    assert (fp16, fp32) == ((0, 2) if level == "O0" else (2, 0))
    net.run()
    assert not capsys.readouterr().out


def test_counting_starts_and_stops(capsys):
    debugging.disable_operator_stats_collection()
    assert not capsys.readouterr().out
    debugging.enable_operator_stats_collection()
    debugging.disable_operator_stats_collection()
    assert "op count: 0" in capsys.readouterr().out


def test_a_programs_operators_are_printed(capsys):
    stats = paddle.static.amp.debugging.collect_operator_stats(Net().main)
    assert "MatMul" in capsys.readouterr().out
    assert stats["MatMul"].fp32 >= 1


@pytest.mark.parametrize("what", ["y", 3, None, "x", np.zeros(3, np.float32)])
def test_what_has_no_numbers_to_check(what):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        labels = paddle.static.data("y", [None], "int64")
        with pytest.raises(InputError, match="check_numerics"):
            debugging.check_numerics(labels if isinstance(what, str) and what == "y" else what, "op", "y")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda good, to: debugging.compare_accuracy(good, good, to, dump_all_tensors=True), "dump_all_tensors=True"),
        (lambda good, to: debugging.compare_accuracy(good, good, to.parent), "cannot write"),
        (lambda good, to: debugging.compare_accuracy(good / "binary", good, to), "cannot read the logs"),
        (lambda good, to: debugging.compare_accuracy(good / "none", good, to), "has no worker"),
    ],
)
def test_comparisons_that_cannot_be_made(call, message, tmp_path):
    good = tmp_path / "good"
    (good / "binary").mkdir(parents=True)
    (good / "worker_cpu.0.log").write_text(f"{stats_of(X, 'op', 'x')}\n")
    (good / "binary" / "worker_cpu.0.log").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=message):
        call(good, tmp_path / "table.csv")


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    net = Net()
    folder = str(tmp_path / "file" / "logs")
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_ALL, output_dir=folder))
    with pytest.raises(OutputError, match="the tensor checker cannot write its log"):
        net.run()


def test_tensors_are_looked_at_in_one_process(monkeypatch):
    net = Net()
    monkeypatch.setattr(type(net.executor), "_is_shared", lambda *_: True)
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_ALL))
    with pytest.raises(OptionError, match="in a single process"):
        net.run()
