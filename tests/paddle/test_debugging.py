"""`paddle.amp.debugging` of static programs: what tensors hold, where infinity comes from, what operators run in."""

import csv
import sys

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import EnvironmentProblem, InputError, NotFiniteError, OptionError, OutputError
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
    got, count_values = paddle.static.Executor(paddle.CPUPlace()).run(
        main, {"x": np.array(values, dtype)}, [stats, held]
    )
    assert (got.dtype, count_values.dtype, got.tolist()) == (np.int64, np.float32, counts)
    if numbers is not None:
        assert count_values.tolist() == numbers


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
        ({"output_dir": 3}, "output_dir is the path of a folder"),
        ({"stack_height_limit": "1"}, "stack_height_limit is a whole number"),
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


class Pair(paddle.nn.Layer):
    """Reads a number that its second argument has in a list, and returns its first argument with the logarithm."""

    @debugging.check_layer_numerics
    def forward(self, x, others, shift):
        return x, [paddle.log(paddle.add(others["y"], shift))]


@pytest.mark.parametrize(
    ("fed", "message"),
    [
        ({}, None),
        ({"x": np.nan}, r"Pair \(its input\) made infinity or NaN: 'x'"),
        ({"y": np.inf}, r"Pair \(its input\).*'y'"),
        ({"z": np.nan}, r"Pair \(its input\).*'z'"),
        ({"y": -1.0}, "operator log"),
    ],
)
@pytest.mark.parametrize("cloned", [False, True])
def test_all_that_a_layer_reads_and_makes_is_checked(fed, message, cloned):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x, y, z = (paddle.static.data(name, [2]) for name in "xyz")
        _, [result] = Pair()(x, {"y": y}, shift=z)
    feed = {name: np.full(2, fed.get(name, 1.0), np.float32) for name in "xyz"}
    program = main.clone(for_test=True) if cloned else main

    def run():
        paddle.static.Executor(paddle.CPUPlace()).run(program, feed, [result.name])

    if message is None:
        run()
    else:
        with pytest.raises(NotFiniteError, match=message):
            run()


class Constant(paddle.nn.Layer):
    """Returns what was computed before it."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    @debugging.check_layer_numerics
    def forward(self, x):  # noqa: ARG002  # a layer may ignore its input
        return self.kept


def test_what_a_layer_returns_is_checked():
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [2])
        result = Constant(paddle.log(x))(x)
    with pytest.raises(NotFiniteError, match=r"Constant \(its output\)"):
        paddle.static.Executor(paddle.CPUPlace()).run(main, {"x": np.zeros(2, np.float32)}, [result])


@pytest.mark.parametrize(
    ("settings", "is_named"),
    [
        ({}, True),
        ({"stack_height_limit": 0}, False),
        ({"stack_height_limit": 0, "checked_op_list": ["log"]}, False),
        ({"checked_op_list": ["log"]}, True),
        ({"checked_op_list": ["log"], "stack_height_limit": 2}, True),
    ],
)
def test_errors_name_the_line_of_the_program(settings, is_named):
    net = Net()
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, **settings))
    with pytest.raises(NotFiniteError) as error:
        net.run(BAD)
    assert ("at tests/paddle/test_debugging.py:" in str(error.value)) is is_named


@pytest.mark.parametrize(
    ("values", "dtype", "is_listed"),
    [
        ([65504.0, -1.0], "float32", False),
        ([65536.0, -1.0], "float32", True),
        ([-1e30], "float32", True),
        ([1e-8, -2e-8], "float32", True),
        ([2.0**-25], "float32", True),
        ([2.0**-24], "float32", False),
        ([1e-8, 1.0], "float32", False),
        ([0.0, 0.0], "float32", False),
        ([np.inf], "float32", True),
        ([65504.0], "float16", False),
        ([np.nan], "float16", True),
        ([6e-8], "float16", False),
    ],
)
def test_what_float16_cannot_hold_is_listed(values, dtype, is_listed, capsys):
    """A float32 run lists what leaves float16's range, or is zero in it; float16's rounding is the oracle."""
    array = np.array(values, dtype)
    with np.errstate(over="ignore"):
        low = array.astype(np.float16)
    assert bool(not np.isfinite(low).all() or ((low == 0).all() and (array != 0).any())) is is_listed
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        result = -paddle.static.data("x", [None], dtype)
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True, Mode.CHECK_ALL_FOR_OVERFLOW))
    paddle.static.Executor(paddle.CPUPlace()).run(main, {"x": array}, [result])
    assert bool(capsys.readouterr().out) is is_listed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: debugging.enable_tensor_checker(True), "takes a TensorCheckerConfig, got True"),
        (lambda x: debugging.check_numerics(x, "op", "x", 3), "debug_mode must be a DebugMode, got 3"),
    ],
)
def test_arguments_of_another_kind(call, message):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [2])
        with pytest.raises(OptionError, match=message):
            call(x)


def test_a_clone_is_checked_as_its_program_is():
    net = Net(lambda h: debugging.check_numerics(h, "my_op", "hidden"))
    test = net.main.clone(for_test=True)
    with pytest.raises(NotFiniteError, match="my_op made infinity or NaN"):
        net.executor.run(test, {"x": BAD, "y": LABELS}, [net.loss.name], scope=net.scope)


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


def sheets(path):
    """Return title -> rows of a workbook, and title -> its merged cells."""
    book = pytest.importorskip("openpyxl").load_workbook(path)
    rows = {sheet.title: [[cell.value for cell in row] for row in sheet.iter_rows()] for sheet in book}
    return book, rows


HEADS = {"A": "op_type", "D": "infinite", "E": "dtype", "F": "max_value", "I": "num_zero", "J": "dtype", "P": "num_nan"}


def test_accuracy_is_compared_in_a_workbook(tmp_path):
    """A sheet has what the CSV has: every tensor, and the same numbers."""
    logged(tmp_path / "a", "O0", X)
    logged(tmp_path / "b", "O2", X)
    for name in ("table.csv", "table.xlsx"):
        debugging.compare_accuracy(tmp_path / "a", tmp_path / "b", tmp_path / name, loss_scale=8)
    with (tmp_path / "table.csv").open(newline="") as stream:
        wanted = {f"{row['tensor']}#{row['occurrence']}": row for row in csv.DictReader(stream)}
    book, rows = sheets(tmp_path / "table.xlsx")
    assert list(rows) == ["worker_cpu.0.log"]
    [(sheet, (groups, heads, *tensors))] = zip(book, rows.values(), strict=True)
    assert {str(merged) for merged in sheet.merged_cells.ranges} == {"E1:I1", "J1:P1", "Q1:S1"}
    assert [group for group in groups if group] == ["fp32", "fp16 (scale=8)", "fp16 / fp32"]
    assert {column: sheet[f"{column}2"].value for column in HEADS} == HEADS
    assert len(heads) == 19
    assert {row[1] for row in tensors} == set(wanted)
    for row in tensors:
        csv_row = wanted[row[1]]
        assert str(row[4]) == csv_row["first_dtype"] or row[4] == "--"
        if row[4] != "--":
            assert row[5] == pytest.approx(float(csv_row["first_max"]), rel=1e-6)
    log = next(row for row in tensors if row[1] == "Log_out0#0")
    assert (log[0], log[2], log[3], log[4], log[9], log[14], log[15]) == ("log", 8, 0, "fp32", "fp16", 0, 0)
    assert log[16] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    ("first", "second", "op", "is_bad"),
    [
        ([1.0, 2.0], [1.0, 2.0], "relu", 0),
        ([1.0, 2.0], [1.0, 3.0], "relu", 0),  # Paddle compares only gradients
        ([1.0, 1e5], [1.0, 2.0], "relu", 1),
        ([1.0, 2.0], [1.0, np.inf], "relu", 1),
        ([1.0, 2.0], [np.nan, 2.0], "relu", 1),
        ([1.0, 2.0], [8.0, 16.0], "relu@grad", 0),
        ([1.0, 2.0], [1.0, 2.0], "relu@grad", 1),
        ([1.0, 1e4], [8.0, 65504.0], "relu@grad", 1),
        ([1.0, 2.0], None, "relu", 0),
        (None, [1.0, np.nan], "relu", 1),
        ([0.0, 0.0], [0.0, 0.0], "relu", 0),
    ],
)
def test_a_workbook_marks_what_is_worth_a_look(first, second, op, is_bad, tmp_path):
    for name, values, dtype in (("a", first, "float32"), ("b", second, "float16")):
        (tmp_path / name).mkdir()
        line = "" if values is None else f"{stats_of(np.array(values, dtype), op, 'x')}\n"
        (tmp_path / name / "worker_gpu.1.log").write_text(line)
    debugging.compare_accuracy(tmp_path / "a", tmp_path / "b", tmp_path / "t.XLSX", loss_scale=8)
    book, rows = sheets(tmp_path / "t.XLSX")
    [row] = rows["worker_gpu.1.log"][2:]
    assert (row[:4], len(row)) == ([op, "x#0", 2, is_bad], 19)
    assert (book.active["D3"].fill.fgColor.rgb == "00FF0000") is bool(is_bad)
    assert (row[4] == "--", row[9] == "--") == (first is None, second is None)


def test_workbooks_without_tensors_and_with_odd_names(tmp_path):
    (tmp_path / "worker_cpu.0.log").write_text("")
    debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.xlsx")
    assert sheets(tmp_path / "t.xlsx")[1] == {"empty": []}
    odd = "worker_[a]" + "n" * 40 + ".0.log"
    line = str(stats_of(X, "op", "a\x01b"))
    (tmp_path / "worker_cpu.0.log").rename(tmp_path / odd)
    (tmp_path / odd).write_text(f"{line}\n")
    debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.xlsx")
    [(title, rows)] = sheets(tmp_path / "t.xlsx")[1].items()
    assert (title, rows[2][1]) == ("worker__a_" + "n" * 21, "ab#0")


def test_a_workbook_without_openpyxl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "worker_cpu.0.log").write_text(f"{stats_of(X, 'op', 'x')}\n")
    with pytest.raises(EnvironmentProblem, match=r"needs openpyxl: pip install 'amp-transpiler\[xlsx\]'; or .*\.csv"):
        debugging.compare_accuracy(tmp_path, tmp_path, tmp_path / "t.xlsx")


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
        (lambda good, to: debugging.compare_accuracy(good, good, to.parent / "none" / to.name), "cannot write"),
        (lambda good, to: debugging.compare_accuracy(good, good, to.with_suffix(".txt")), "must end in .csv or .xlsx"),
        (lambda good, to: debugging.compare_accuracy(good, good, to, loss_scale=0), "loss_scale is a positive number"),
        (lambda good, to: debugging.compare_accuracy(good, good, to, np.nan), "loss_scale is a positive number"),
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
