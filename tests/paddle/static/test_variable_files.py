"""Some of a program's values in files: `save_vars` and its kin, and which variables a program has."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import static


@pytest.fixture
def net():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        x = static.data("x", [None, 3])
        loss = paddle.mean(static.nn.batch_norm(static.nn.fc(x, 2)))
        paddle.optimizer.Adam(0.1).minimize(loss)
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        yield main, exe, static.global_scope()


def zero(scope, names):
    before = {name: np.array(scope[name]) for name in names}
    for name in names:
        scope[name] = before[name] * 0
    return before


@pytest.mark.parametrize("filename", [None, "all"])
def test_parameters_come_back(net, tmp_path, filename):
    main, exe, scope = net
    static.save_params(exe, tmp_path, main, filename)
    names = [v.name for v in main.list_vars() if isinstance(v, paddle.base.framework.Parameter)]
    assert set(names) - {p.name for p in main.all_parameters()} == {"batch_norm_0.w_1", "batch_norm_0.w_2"}
    files = {path.name for path in tmp_path.iterdir()}
    assert files == ({f"{name}.safetensors" for name in names} if filename is None else {"all.safetensors"})
    before = zero(scope, names)
    static.load_params(exe, tmp_path, main, filename)
    for name in names:
        np.testing.assert_array_equal(scope[name], before[name])


def test_chosen_variables_come_back_and_no_others(net, tmp_path):
    main, exe, scope = net
    static.save_vars(exe, tmp_path, main, predicate=lambda v: "moment" in v.name)
    assert {path.stem for path in tmp_path.iterdir()} == {n for n in main.persistables if "moment" in n}
    static.save_vars(exe, tmp_path / "few", main, vars=["fc_0.w_0", main.var("fc_0.b_0")])
    before = zero(scope, ["fc_0.w_0", "batch_norm_0.w_0"])
    static.load_vars(exe, tmp_path / "few", main, vars=["fc_0.w_0"])
    np.testing.assert_array_equal(scope["fc_0.w_0"], before["fc_0.w_0"])
    assert not scope["batch_norm_0.w_0"].any()


@pytest.mark.parametrize("module", [static, paddle.distributed.io])
def test_all_that_persists_comes_back(net, tmp_path, module):
    main, exe, scope = net
    module.save_persistables(exe, tmp_path, main, "everything")
    before = zero(scope, list(main.persistables))
    module.load_persistables(exe, tmp_path, main, "everything")
    for name, array in before.items():
        np.testing.assert_array_equal(scope[name], array)


def test_mistakes(net, tmp_path):
    main, exe, _ = net
    with pytest.raises(InputError, match="does not persist between runs"):
        static.save_vars(exe, tmp_path, main, vars=["x"])
    with pytest.raises(InputError, match="no such file"):
        static.load_params(exe, tmp_path / "nowhere", main)
    static.save_vars(exe, tmp_path, main, vars=["fc_0.w_0"], filename="one")
    with pytest.raises(InputError, match=r"has no value for fc_0\.b_0"):
        static.load_params(exe, tmp_path, main, "one")


def test_a_program_says_which_variables_it_has(net):
    main, _, _ = net
    block = main.global_block()
    assert block.has_var("fc_0.w_0")
    assert not block.has_var("fc_9.w_0")
    assert block.vars["fc_0.w_0"].is_parameter
    assert not block.vars["x"].is_parameter
    assert {name for name, variable in block.vars.items() if variable.is_parameter} == {
        p.name for p in main.all_parameters()
    }


def test_a_folder_of_variables_is_a_checkpoint(net, tmp_path):
    main, exe, scope = net
    static.save_persistables(exe, tmp_path, main)
    assert len(list(tmp_path.iterdir())) == len(main.persistables)
    before = zero(scope, list(main.persistables))
    assert set(static.load_program_state(tmp_path)) == set(before)
    static.load(main, tmp_path, exe, ["fc_0.w_0"])
    assert not scope["fc_0.b_0"].any()
    np.testing.assert_array_equal(scope["fc_0.w_0"], before["fc_0.w_0"])
    static.load(main, tmp_path, exe)
    for name, array in before.items():
        np.testing.assert_array_equal(scope[name], array)
    with pytest.raises(InputError, match="no such file"):
        static.load(main, tmp_path / "nothing", exe)


def test_kinds_of_variables_as_paddles_scripts_ask_for_them(net):
    main, *_ = net
    framework = paddle.framework
    parameters = {v.name for v in filter(framework.is_parameter, main.list_vars())}
    assert {"fc_0.w_0", "fc_0.b_0", "batch_norm_0.w_0", "batch_norm_0.w_1"} < parameters
    assert not any("moment" in name for name in parameters)
    assert {v.name for v in filter(framework.is_persistable, main.list_vars())} == set(main.persistables)
    assert not isinstance(main.var("x"), framework.Parameter)
    assert {v.name for v in static.io.get_program_parameter(main)} == parameters
    assert {v.name for v in static.io.get_program_persistable_vars(main)} == set(main.persistables)
    assert not isinstance("fc_0.w_0", framework.Parameter)
