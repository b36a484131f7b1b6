"""Section 3 of Paddle's pull request 29544, run as `examples/paddle_pure_fp16.py`, and its picture."""

import pathlib
import runpy

import numpy as np
import pytest

from amp_transpiler import static
from amp_transpiler.runtime.scope import scope_guard
from tests.paddle import nets

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "paddle_pure_fp16.py"


@pytest.fixture(scope="module")
def ran():
    """The result of the script, and the scope that it ran in."""
    scope = static.Scope()
    with scope_guard(scope):
        return runpy.run_path(str(SCRIPT)), scope


def only(program, op_type):
    [node] = nets.nodes(program, op_type, "forward")
    return node


def test_the_loss_is_finite(ran):
    program, _ = ran
    assert program["loss_data"].size == 1
    assert np.isfinite(program["loss_data"]).all()


@pytest.mark.parametrize("program", ["train_program", "test_program"])
def test_casts_are_where_paddles_picture_has_them(ran, program):
    """Before the guard, and around the blacklisted pool."""
    trained_program, _ = ran
    conv, norm, pool = (only(trained_program[program], name) for name in ("Conv", "BatchNormalization", "MaxPool"))
    assert nets.reads(conv)[:2] == ["FLOAT", "FLOAT"], "outside the guard"
    assert nets.makes(conv) == ["FLOAT"]
    entering = norm.inputs[0].producer()
    assert (entering.op_type, nets.reads(entering), nets.makes(entering)) == ("Cast", ["FLOAT"], ["FLOAT16"])
    before = pool.inputs[0].producer()
    [after] = pool.outputs[0].consumers()
    assert (before.op_type, nets.reads(before), nets.makes(before)) == ("Cast", ["FLOAT16"], ["FLOAT"])
    assert (after.op_type, nets.reads(after), nets.makes(after)) == ("Cast", ["FLOAT"], ["FLOAT16"])
    products = nets.nodes(trained_program[program], "MatMul", "forward") + nets.nodes(
        trained_program[program], "Gemm", "forward"
    )
    assert [nets.makes(node) for node in products] == [["FLOAT16"]]


@pytest.mark.parametrize("program", ["train_program", "test_program"])
def test_only_the_guarded_product_has_low_parameters(ran, program):
    trained_program, scope = ran
    main = trained_program[program]
    parameters = {variable.name: variable.dtype for variable in main.all_parameters()}
    low = {name for name, dtype in parameters.items() if dtype == "float16"}
    products = nets.nodes(main, "MatMul", "forward") + nets.nodes(main, "Gemm", "forward")
    assert products[0].inputs[1].name in low
    norm, conv = only(main, "BatchNormalization"), only(main, "Conv")
    assert {value.name for value in (*norm.inputs[1:], conv.inputs[1])}.isdisjoint(low)
    assert all(scope[name].dtype.name == dtype for name, dtype in parameters.items())


def test_masters_are_what_the_low_parameters_were_rounded_from(ran):
    program, scope = ran
    masters = program["optimizer"].master_weights
    assert masters
    for parameter, master in masters.items():
        assert scope[master].dtype == np.float32
        np.testing.assert_array_equal(scope[parameter], scope[master].astype(np.float16))


def test_the_test_program_runs_on_what_was_trained(ran):
    program, scope = ran
    test = program["test_program"]
    (predicted,) = program["exe"].run(test, feed={"image": program["x"]}, fetch_list=[_prediction(test)], scope=scope)
    np.testing.assert_allclose(predicted.astype(np.float32).sum(-1), np.ones(4), rtol=1e-2)


def _prediction(program):
    return only(program, "Softmax").outputs[0].name
