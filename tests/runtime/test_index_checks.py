"""Labels and ids outside of their range: which values are checked, what the error names, and what passes."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler import CPUPlace, decorate, load, optimizer, paddle, static, tensor
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.static.onnx_import import from_onnx
from amp_transpiler.runtime import flags
from amp_transpiler.runtime.fed_integers import fed_integers
from tests import support

X = np.ones((4, 5), np.float32)


class Net:
    """A training step of `make(inputs)` with SGD, started."""

    def __init__(self, make, wrap=lambda o: o):
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        with static.program_guard(self.main, startup):
            self.loss = tensor.mean(make())
            wrapped = wrap(optimizer.SGD(0.1))
            wrapped.minimize(self.loss, startup)
        self.executor = static.Executor(CPUPlace())
        self.executor.run(startup, scope=self.scope)

    def run(self, **feeds):
        before = {name: self.scope[name] for name in self.scope}
        try:
            return self.executor.run(self.main, feeds, [self.loss], scope=self.scope)[0]
        except InputError:
            assert all((self.scope[name] == before[name]).all() for name in before)
            raise


def classifier(shape=(None, 1), dtype="int64", change=lambda y: y, **options):
    def make():
        x, y = static.data("x", [None, 5]), static.data("y", list(shape), dtype)
        return functional.cross_entropy(static.nn.fc(x, 3), change(y), **options)

    return make


def table(change=lambda i: i, dtype="int64", **options):
    def make():
        ids = static.data("ids", [None, 3], dtype)
        return functional.embedding(change(ids), static.nn.create_parameter([6, 2], "float32", name="rows"), **options)

    return make


CHANGED = {
    "as fed": lambda y: y,
    "cast": lambda y: y.astype("int32"),
    "reshaped": lambda y: tensor.reshape(y, [-1, 1]),
    "flat and back": lambda y: tensor.unsqueeze(tensor.squeeze(y, 1), 1),
    "joined halves": lambda y: tensor.concat([tensor.slice(y, [0], [0], [2]), tensor.slice(y, [0], [2], [9])], 0),
    "split and turned": lambda y: tensor.transpose(
        tensor.concat(tensor.split(tensor.transpose(y, [1, 0]), 2, 1), 1), [1, 0]
    ),
}


@pytest.mark.parametrize("label", [-1, 3, 7, -7])
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_fed_label_outside_names_feed_place_number_and_range(change, label):
    net = Net(classifier((4, 1), change=change))
    good = np.array([[0], [1], [2], [-100]])
    assert np.isfinite(net.run(x=X, y=good))
    bad = good.copy()
    bad[2] = label
    with pytest.raises(InputError) as raised:
        net.run(x=X, y=bad)
    text = str(raised.value)
    assert f"input 'y' at [2, 0] is {label}:" in text
    assert "SoftmaxCrossEntropyLoss" in text
    assert "cross_entropy" in text
    assert "0 to 2, or ignore_index=-100" in text
    assert "FLAGS_check_index_range" in text


def test_labels_that_are_fed_as_floats():
    net = Net(classifier(dtype="float32", change=lambda y: y.astype("int64")))
    assert np.isfinite(net.run(x=X, y=np.array([[0], [1], [2], [-100]], np.float32)))
    for label in (3, -1, np.nan):
        with pytest.raises(InputError, match=r"input 'y' at \[1, 0\] is -?\d+: the labels"):
            net.run(x=X, y=np.array([[0], [label], [2], [1]], np.float32))


def test_only_the_part_of_a_feed_that_is_read_as_labels_counts():
    net = Net(classifier((4, 2), change=lambda y: tensor.slice(y, [1], [1], [2])))
    assert np.isfinite(net.run(x=X, y=np.array([[99, 0], [-1, 1], [50, 2], [7, 2]])))
    with pytest.raises(InputError, match=r"input 'y' at \[3, 1\] is 5: "):
        net.run(x=X, y=np.array([[99, 0], [-1, 1], [50, 2], [7, 5]]))


def test_the_number_of_wrong_labels_is_said():
    with pytest.raises(InputError, match=r"input 'y' at \[1, 0\] is -1 \(2 more are wrong\)"):
        Net(classifier()).run(x=X, y=np.array([[0], [-1], [3], [-2]]))


def test_another_ignore_index():
    net = Net(classifier(ignore_index=-1))
    assert np.isfinite(net.run(x=X, y=np.array([[0], [-1], [2], [1]])))
    with pytest.raises(InputError, match=r"is -100: .*ignore_index=-1;"):
        net.run(x=X, y=np.array([[0], [-100], [2], [1]]))


LOSSES = {
    "nll_loss": lambda s, y: functional.nll_loss(functional.log_softmax(s), y),
    "without softmax": lambda s, y: functional.cross_entropy(functional.softmax(s), y, use_softmax=False),
    "softmax_with_cross_entropy": lambda s, y: functional.softmax_with_cross_entropy(s, tensor.unsqueeze(y, 1)),
    "one_hot": lambda s, y: s * functional.one_hot(y, 3),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_every_function_that_takes_labels(loss):
    net = Net(lambda: loss(static.nn.fc(static.data("x", [None, 5]), 3), static.data("y", [None], "int64")))
    assert np.isfinite(net.run(x=X, y=np.array([0, 1, 2, 0])))
    for label in (-1, 3):
        with pytest.raises(InputError, match=rf"input 'y' at \[1\] is {label}: .* are 0 to 2"):
            net.run(x=X, y=np.array([0, label, 2, 0]))


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: decorate(o, level="O2")], ids=["fp32", "O2"])
@pytest.mark.parametrize("bad", [-1, 6, -7])
def test_an_id_outside_of_its_table(bad, wrap):
    net = Net(table(), wrap)
    assert np.isfinite(net.run(ids=np.array([[0, 5, 2]])))
    with pytest.raises(InputError, match=rf"input 'ids' at \[0, 1\] is {bad}: the rows of 'rows'.* are 0 to 5; .*padd"):
        net.run(ids=np.array([[0, bad, 2]]))


def test_padding_idx_is_a_row_and_a_negative_one_counts_from_the_last_as_in_paddle():
    net = Net(table(padding_idx=-1))
    assert np.isfinite(net.run(ids=np.array([[0, 5, 2]])))  # row 5 is the padding
    with pytest.raises(InputError, match=r"\[0, 1\] is -1"):
        net.run(ids=np.array([[0, -1, 2]]))


COMPUTED = {
    "labels": (classifier((None, 1), change=lambda y: y * 2 - 2), {"x": X}, "y", [[1], [0], [1], [1]], "is -2"),
    "large labels": (classifier((None, 1), change=lambda y: y * 2), {"x": X}, "y", [[1], [2], [1], [1]], "is 4"),
    "ids": (table(lambda i: i * 2 - 2), {}, "ids", [[1, 0, 1]], "is -2"),
    "large ids": (table(lambda i: i * 2), {}, "ids", [[1, 3, 1]], "is 6"),
}


@pytest.mark.parametrize("case", COMPUTED.values(), ids=COMPUTED)
def test_a_number_that_the_program_computes_is_checked_before_anything_changes(case):
    make, feeds, name, numbers, message = case
    net = Net(make)
    net.run(**feeds, **{name: np.ones_like(numbers)})
    with pytest.raises(InputError, match=rf"'(Sub|Mul)\w*'\)? at \[.*\] {message}: "):
        net.run(**feeds, **{name: np.array(numbers)})


def test_an_index_may_wrap_round_but_not_leave_its_data():
    def make():
        x, at = static.data("x", [None, 5]), static.data("at", [2], "int64")
        return tensor.gather(static.nn.fc(x, 3), at)

    net = Net(make)
    assert np.isfinite(net.run(x=X, at=np.array([0, -1])))
    with pytest.raises(InputError, match=r"'at' at \[1\] is 4: the positions in '\w+' that Gather .* are -4 to 3"):
        net.run(x=X, at=np.array([0, 4]))


def test_the_check_can_be_switched_off_and_the_raw_error_still_names_the_value():
    net = Net(classifier())
    paddle.set_flags({"FLAGS_check_index_range": False})
    try:
        assert paddle.get_flags("FLAGS_check_index_range") == {"FLAGS_check_index_range": False}
        net.run(x=X, y=np.array([[0], [-1], [2], [1]]))
        with pytest.raises(InputError, match=r"is 3: the labels of SoftmaxCrossEntropyLoss"):
            net.run(x=X, y=np.array([[0], [3], [2], [1]]))
    finally:
        paddle.set_flags({"FLAGS_check_index_range": True})


@pytest.mark.parametrize("flags", [{"FLAGS_check_nan": True}, {"FLAGS_check_nan_inf": "perhaps"}])
def test_a_wrong_flag_is_refused(flags):
    with pytest.raises(OptionError):
        paddle.set_flags(flags)


GATHER = "(int64[n] ids) => (float[n,2] y) { y = Gather(rows, ids) }"


def test_a_loaded_model_keeps_onnxs_rules_and_a_program_made_of_it_does_not():
    model = support.parse(GATHER, rows=support.array(6, 2))
    executor = static.Executor(CPUPlace())
    feeds = {"ids": np.array([0, -1])}
    assert executor.run(load(model), feeds, ["y"])[0].shape == (2, 2)
    startup, scope = static.Program(), static.Scope()
    trained = from_onnx(model, startup)
    executor.run(startup, scope=scope)
    with pytest.raises(InputError, match="is -1: the rows of 'rows'"):
        executor.run(trained, feeds, ["y"], scope=scope)


def test_an_environment_variable_gives_a_flag_its_first_value(monkeypatch):
    monkeypatch.setattr(flags, "_values", {})
    monkeypatch.setenv("FLAGS_check_nan_inf", "1")
    monkeypatch.setenv("FLAGS_check_index_range", "false")
    names = [flag.name for flag in flags.FLAGS]
    assert paddle.get_flags(names) == {"FLAGS_check_nan_inf": True, "FLAGS_check_index_range": False}


def test_flags_that_tune_paddles_runtime_are_kept_and_have_no_effect(caplog):
    with caplog.at_level("INFO"):
        paddle.set_flags({"FLAGS_cudnn_deterministic": 1, "FLAGS_allocator_strategy": "auto_growth"})
    assert "FLAGS_allocator_strategy, FLAGS_cudnn_deterministic tune Paddle's own runtime" in caplog.text
    assert paddle.get_flags("FLAGS_allocator_strategy") == {"FLAGS_allocator_strategy": "auto_growth"}
    with pytest.raises(OptionError, match="there is no flag 'FLAGS_use_autotune'"):
        paddle.get_flags("FLAGS_use_autotune")


MISFITS = {
    "y = Reshape(x, s)": ([5, 5], (3, 4)),
    "y = Gather<axis = 1>(x, s)": ([9, 9], (3, 4)),
    "y = Squeeze(x, s)": ([0, 1], (3, 4)),
    "y = Transpose<perm = [2, 0, 1]>(x)": ([0, 0], (3, 4)),
    "z, y = Split<axis = 1>(x, s)": ([3, 3], (5,)),
}


@pytest.mark.parametrize("text", MISFITS)
def test_what_is_fed_and_fits_no_node_is_named(text):
    constant, shape = MISFITS[text]
    outputs = ", ".join(f"int64 {name.strip()}" for name in text.split("=")[0].split(","))
    graph = ir.from_proto(support.parse(f"(int64[a,b] x) => ({outputs}) {{ {text} }}", s=np.array(constant))).graph
    value = graph.outputs[-1]
    source = fed_integers(value, {"x"})
    assert source is not None
    with pytest.raises(InputError, match=f"cannot compute 'y' from what is fed, of {re.escape(str(list(shape)))}"):
        source.numbers({"x": np.zeros(shape, np.int64)})
