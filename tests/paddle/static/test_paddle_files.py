"""Paddle's files of parameters and others', in and out; and what a pickle may not do."""

import collections
import logging
import os
import pathlib
import pickle

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from amp_transpiler import CPUPlace, optimizer, paddle, static
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.static.pickled import read_pickled

X = np.ones((2, 3), np.float32)


class Net:
    """A layer with Adam, started."""

    def __init__(self):
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        startup.random_seed = 3
        with static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
            self.loss = paddle.mean(static.nn.fc(static.data("x", [None, 3]), 2))
            optimizer.Adam(0.1).minimize(self.loss)
        self.executor = static.Executor(CPUPlace())
        self.executor.run(startup, scope=self.scope)

    def step(self):
        return self.executor.run(self.main, {"x": X}, [self.loss], scope=self.scope)[0]

    def values(self):
        return {name: self.scope[name] for name in self.main.persistables}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


ORDERS = {
    "Paddle's": lambda net, path: static.load(net.main, path, net.executor, scope=net.scope),
    "names": lambda net, path: static.load(program=net.main, path=path, executor=None, scope=net.scope),
    "ours": lambda net, path: static.load(net.main, path, net.scope),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("name", ["m", "m.safetensors", "m.pdparams"])
def test_a_checkpoint_comes_back_whole_in_every_order_of_arguments(tmp_path, name, order):
    net = Net()
    net.step()
    static.save(net.main, str(tmp_path / name), 4, scope=net.scope)
    saved = net.values()
    other = Net()
    order(other, str(tmp_path / name))
    assert same(other.values(), saved)
    assert other.step() == net.step()
    if name == "m.pdparams":
        powers = [array for key, array in read_pickled(tmp_path / "m.pdopt").items() if "_pow_acc" in key]
        assert [array.shape for array in powers] == [(1,)] * 4  # as Paddle's
        assert names_in(tmp_path) == ["m.pdopt", "m.pdparams"]
        order(other, str(tmp_path / "m"))
        assert same(other.values(), saved)


@pytest.mark.parametrize("ending", [".pdparams", ".pdopt", ".pdmodel"])
def test_a_checkpoint_is_found_by_the_names_that_paddle_gives_its_files(tmp_path, ending):
    net, other = Net(), Net()
    net.step()
    static.save(net.main, str(tmp_path / "m"), scope=net.scope)
    static.load(other.main, str(tmp_path / f"m{ending}"), other.executor, scope=other.scope)
    assert same(other.values(), net.values())
    with pytest.raises(InputError, match=rf"n{ending}.*no such file"):
        static.load(other.main, str(tmp_path / f"n{ending}"), other.executor, scope=other.scope)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_files_as_paddle_writes_them(tmp_path, protocol, caplog):
    """`static.save` pickles arrays by name; optimizer state that is missing keeps its value."""
    net = Net()
    net.step()
    before = net.values()
    weight = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2))
    with (tmp_path / "m.pdparams").open("wb") as file:
        pickle.dump({"fc_0.w_0": weight, "fc_0.b_0": np.float32([1, 2])}, file, protocol=protocol)
    with caplog.at_level(logging.INFO):
        static.load(net.main, tmp_path / "m", net.executor, scope=net.scope)
    after = net.values()
    np.testing.assert_array_equal(after["fc_0.w_0"], weight)
    np.testing.assert_array_equal(after["fc_0.b_0"], [1, 2])
    rest = [name for name in before if not name.startswith("fc_0") or "moment" in name]
    assert rest
    assert all(np.array_equal(before[name], after[name]) for name in rest)
    assert "stay as they are" in caplog.text


class LoDTensor:
    """Pickles itself as Paddle's does."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return eval, ("data", {"data": self.array})


class Tensor(LoDTensor):
    def __reduce__(self):
        return tuple, (("linear_0.w_0", self.array),)


def test_every_form_that_paddle_gives_an_array(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    bits = array.astype(ml_dtypes.bfloat16).view(np.uint16)
    content = collections.OrderedDict(
        plain=array,
        lod=LoDTensor(array),
        weight=Tensor(array),
        low=bits,
        big=array.astype(">f4"),
        number=np.float64(2.5),
        flags=np.array([True, False]),
        LR_Scheduler={"last_epoch": 3},
    )
    content["StructuredToParameterName@@"] = {"weight": "linear_0.w_0"}
    content["UnpackBigParamInfor@@"] = {"cut": {"OriginShape": (2, 3), "slices": ["cut@@.0", "cut@@.1"]}}
    content["cut@@.0"], content["cut@@.1"] = array.reshape(-1)[:4], array.reshape(-1)[4:]
    path = tmp_path / "p.pdparams"
    path.write_bytes(pickle.dumps(content, protocol=2))
    unpickled = read_pickled(path)
    assert set(unpickled) == {"plain", "lod", "linear_0.w_0", "low", "big", "number", "flags", "cut"}
    for name in ("plain", "lod", "linear_0.w_0", "big", "cut"):
        np.testing.assert_array_equal(unpickled[name], array)
        assert unpickled[name].dtype == np.float32
    assert unpickled["low"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(unpickled["low"].astype(np.float32), array)
    assert unpickled["number"] == 2.5
    unpickled["weight"] = unpickled.pop("linear_0.w_0")  # in the words of the Layer
    assert same(unpickled, paddle.load(path))


class Call:
    """Pickles itself as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


MARK = "a_pickle_ran.txt"
ATTACKS = {
    "system": Call(os.system, f"touch {MARK}"),
    "exec": Call(exec, f"open({MARK!r}, 'w')"),
    "eval": Call(eval, f"open({MARK!r}, 'w')", {}),
    "open": Call(pathlib.Path.touch, pathlib.Path(MARK)),
    "getattr": Call(getattr, os, "system"),
    "load": Call(np.load, MARK),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "p.pdparams"
    try:
        path.write_bytes(pickle.dumps({"w": attack}))
    except TypeError:  # a module cannot be pickled
        path.write_bytes(b"\x80\x02}U\x01wcposix\nsystem\nU\x04trueR\x85s.")
    for read in (static.load_program_state, paddle.load):
        with pytest.raises(InputError, match=r"which a file of arrays does not need; it was not called|damaged"):
            read(path)
    assert not (tmp_path / MARK).exists()


def array_of(shape, dtype, data):
    class Forged:
        def __reduce__(self):
            array = np.zeros(0, np.float32).__reduce__()
            return array[0], array[1], (1, shape, dtype, False, data)

    return pickle.dumps({"w": Forged()})


DAMAGED = {
    "cut": pickle.dumps({"w": np.ones(100)})[:-50],
    "a list": pickle.dumps([np.ones(2)]),
    "objects": pickle.dumps({"w": np.array([{}, None], object)}),
    "too few bytes": array_of((100,), np.dtype("f4"), b"1234"),
    "negative": array_of((-1, -1), np.dtype("f4"), b"1234"),
    "bytes as objects": array_of((1,), np.dtype("O"), b"12345678"),
    "no shape": array_of(None, np.dtype("f4"), b"1234"),
    "huge": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "nothing": b"\x80\x02.",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_pickle_is_one_error(tmp_path, content):
    path = tmp_path / "p.pdparams"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"p\.pdparams: "):
        static.load_program_state(path)


def test_safetensors_of_others_in_and_ours_out(tmp_path):
    net = Net()
    save_file({"fc_0.w_0": np.full((3, 2), 2.0, np.float32)}, tmp_path / "other.safetensors")
    static.load(net.main, tmp_path / "other", net.executor, ["fc_0.w_0"], scope=net.scope)
    assert (net.scope["fc_0.w_0"] == 2.0).all()
    static.save(net.main, tmp_path / "own.safetensors", scope=net.scope)
    assert same(load_file(tmp_path / "own.safetensors"), net.values())
    paddle.save(net.values(), tmp_path / "dict.safetensors")
    assert same(paddle.load(tmp_path / "dict.safetensors"), net.values())


def test_what_is_to_be_loaded_must_exist(tmp_path):
    net = Net()
    static.save(net.main, tmp_path / "m", scope=net.scope)
    with pytest.raises(InputError, match=r"no persistable value 'fc_0.w_1' \(did you mean 'fc_0.w_0'"):
        static.load(net.main, tmp_path / "m", net.executor, ["fc_0.w_1"], scope=net.scope)
    with pytest.raises(InputError, match="no such file"):
        static.load(net.main, tmp_path / "missing", net.executor, scope=net.scope)
    with pytest.raises(InputError, match=r"did you mean 'fc_0\.w_0'"):
        static.load_program_state(tmp_path / "m", ["fc_0.w_1"])
    for name in ("m.pdparams", "m"):
        with pytest.raises(OptionError, match="protocol must be 2, 3 or 4"):
            static.save(net.main, tmp_path / name, 7, scope=net.scope)
    with pytest.raises(InputError, match="expected names and arrays"):
        paddle.save([1], tmp_path / "x.pdparams")


def test_state_dictionaries_of_variables(tmp_path):
    net = Net()
    with static.scope_guard(net.scope):
        paddle.save({v.name: v for v in net.main.all_parameters()}, tmp_path / "d.pdparams")
    state = paddle.load(tmp_path / "d.pdparams")
    assert same(state, {name: net.scope[name] for name in ("fc_0.w_0", "fc_0.b_0")})
    other = Net()
    other.step()
    static.set_program_state(other.main, state, other.scope)
    assert np.array_equal(other.scope["fc_0.w_0"], net.scope["fc_0.w_0"])


def test_programs_hand_out_their_state_and_take_it(tmp_path):
    net = Net()
    net.step()
    whole = net.main.state_dict(scope=net.scope)
    assert same(whole, net.values())
    parameters, state = (net.main.state_dict(mode, net.scope) for mode in ("param", "opt"))
    assert set(parameters) == {"fc_0.w_0", "fc_0.b_0"}
    assert same({**parameters, **state}, whole)
    paddle.save(whole, tmp_path / "all.pdparams")
    other = Net()
    other.main.set_state_dict(paddle.load(tmp_path / "all.pdparams"), other.scope)
    assert other.step() == net.step()
    with pytest.raises(OptionError, match="mode must be"):
        net.main.state_dict("parameters", net.scope)
    with pytest.raises(InputError, match="run the startup program"):
        net.main.state_dict(scope=static.Scope())


def test_what_a_killed_save_left_goes_when_the_checkpoint_is_read(tmp_path):
    net = Net()
    static.save(net.main, tmp_path / "m", scope=net.scope)
    if (child := os.fork()) == 0:
        from amp_transpiler.files.staging import staging_folder

        with staging_folder(tmp_path) as folder:
            (folder / "file").write_bytes(b"half")
            os._exit(9)
    os.waitpid(child, 0)
    assert len(names_in(tmp_path)) == 2
    static.load(net.main, tmp_path / "m", net.executor, scope=net.scope)
    assert names_in(tmp_path) == ["m.safetensors"]


def test_the_arguments_of_paddles_inference_models(tmp_path):
    net = Net()
    x, result = net.main.var("x"), net.main.var("Add_out0")
    options = {"program": net.main, "clip_extra": True, "legacy_format": False}
    with static.scope_guard(net.scope):
        static.save_inference_model(str(tmp_path / "a"), [x], [result], net.executor, **options)
        static.save_inference_model(str(tmp_path / "b"), ["x"], ["Add_out0"], net.executor, program=net.main)
        with pytest.raises(OptionError, match=r"unknown option 'clip_extr'.*did you mean 'clip_extra'"):
            static.save_inference_model(str(tmp_path / "c"), [x], [result], net.executor, clip_extr=True)
    for name in ("a", "b"):
        program, feeds, fetches = static.load_inference_model(
            str(tmp_path / name), net.executor, model_filename=None, params_filename=None
        )
        assert feeds == ["x"]
        assert net.executor.run(program, {"x": X}, fetches)[0].shape == (2, 2)


def test_programs_and_values_as_bytes(tmp_path):
    net = Net()
    x, result = net.main.var("x"), net.main.var("Add_out0")
    with static.scope_guard(net.scope):
        program = static.serialize_program([x], [result])
        values = static.serialize_persistables([x], [result], net.executor)
        wanted = net.executor.run(static.normalize_program(net.main, [x], [result]), {"x": X}, [result.name])[0]
    assert np.array_equal(wanted, net.executor.run(net.main.clone(for_test=True), {"x": X}, [result], net.scope)[0])
    static.save_to_file(tmp_path / "p", program)
    other, scope = static.deserialize_program(static.load_from_file(tmp_path / "p")), static.Scope()
    static.deserialize_persistables(other, values, net.executor, scope)
    assert [(p.name, p.shape) for p in other.all_parameters()] == [("fc_0.w_0", (3, 2)), ("fc_0.b_0", (2,))]
    assert np.array_equal(net.executor.run(other, {"x": X}, other.outputs, scope)[0], wanted)
    with pytest.raises(InputError, match="also depends on x"):
        static.serialize_program([], [result])
    with pytest.raises(InputError, match="no bytes of serialize_program"):
        static.deserialize_program(b"12")
    with pytest.raises(InputError, match="damaged"):
        static.deserialize_persistables(other, b"12", None, scope)
    with pytest.raises(InputError, match="cannot be read"):
        static.load_from_file(tmp_path / "missing")
    with pytest.raises(InputError, match="expected bytes"):
        static.save_to_file(tmp_path / "q", "text")


def test_a_variable_reads_and_sets_its_value():
    net = Net()
    weight = net.main.all_parameters()[0]
    weight.set_value(np.full((3, 2), 2.0), net.scope)
    np.testing.assert_array_equal(weight.get_value(net.scope), np.full((3, 2), 2.0, np.float32))
    with pytest.raises(InputError, match="has shape"):
        weight.set_value(np.zeros(3, np.float32), net.scope)
    for act in (net.loss.get_value, lambda: net.loss.set_value(1.0)):
        with pytest.raises(InputError, match="only while a program runs"):
            act()
