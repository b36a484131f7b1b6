"""Gradients stop where the user says: a parameter with stop_gradient, or in no_grad_set, is not trained."""

import logging

import pytest
from amp_transpiler.utils import unique_name

import amp_transpiler as amp
from amp_transpiler import static, tensor

ALL = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]
FROZEN = ALL[1:]  # all but the first


def built():
    x = static.data("x", [2, 3])
    return x, tensor.mean(static.nn.fc(static.nn.fc(x, 3), 1))


def trained(how, **decorate):
    """Names of the parameters that `minimize` trains."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        _, loss = built()
        first = main.var(ALL[0])
        optimizer = amp.optimizer.SGD(0.1)
        if decorate:
            optimizer = static.amp.decorate(optimizer, **decorate)
        _, pairs = optimizer.minimize(loss, **how(first))
    names = [parameter.name for parameter, _ in pairs]
    assert set(names) <= main.updates.keys()
    assert not (set(ALL) - set(names)) & main.updates.keys()
    return names


def stop(parameter):
    parameter.stop_gradient = True
    return {}


def freeze(parameter):
    parameter.trainable = False
    return {}


WAYS = {
    "nothing stops": (lambda first: {}, ALL),
    "stop_gradient": (stop, FROZEN),
    "trainable": (freeze, FROZEN),
    "a variable in no_grad_set": (lambda first: {"no_grad_set": {first}}, FROZEN),
    "a name in no_grad_set": (lambda first: {"no_grad_set": [first.name]}, FROZEN),
}


@pytest.mark.parametrize("decorate", [{}, {"level": "O1"}, {"level": "O2"}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_parameter_is_not_trained(way, decorate):
    how, expected = WAYS[way]
    assert trained(how, **decorate) == expected


def test_only_parameters_are_made_trainable():
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
        with pytest.raises(amp.InputError, match="no parameter"):
            x.trainable = True


def test_a_stopped_parameter_is_left_out_of_a_list_too():
    main = static.Program()
    with static.program_guard(main, static.Program()), unique_name.guard():
        _, loss = built()
        main.var(ALL[0]).stop_gradient = True
        pairs = static.append_backward(loss, parameter_list=ALL[:2])
    assert [parameter.name for parameter, _ in pairs] == ALL[1:2]


def test_gradients_are_none_for_inputs_in_no_grad_set_alone():
    main = static.Program()
    with static.program_guard(main, static.Program()), unique_name.guard():
        x, loss = built()
        assert x.stop_gradient
        first = main.var(ALL[0])
        slopes = static.gradients([loss], [x, first], no_grad_set={first})
    assert [gradient is None for gradient in slopes] == [False, True]


def test_nothing_left_to_train_is_an_error():
    main = static.Program()
    with static.program_guard(main, static.Program()), unique_name.guard():
        _, loss = built()
        with pytest.raises(amp.InputError, match="stop_gradient, or is in no_grad_set"):
            static.append_backward(loss, no_grad_set=ALL)


@pytest.mark.parametrize(
    "arguments",
    [{"no_grad_set": ALL[0]}, {"parameter_list": ALL[0]}, {"no_grad_set": [1]}, {"parameter_list": [None]}],
    ids=str,
)
def test_a_name_alone_is_no_list(arguments):
    with static.program_guard(static.Program(), static.Program()), unique_name.guard():
        _, loss = built()
        with pytest.raises(amp.InputError, match="must be a list or set of variables and names"):
            static.append_backward(loss, **arguments)


def test_an_unknown_name_in_no_grad_set_is_warned_of(caplog):
    with static.program_guard(static.Program(), static.Program()), unique_name.guard():
        _, loss = built()
        with caplog.at_level(logging.WARNING):
            static.append_backward(loss, no_grad_set={"fc_0.w_1", "fc_0.w_0"})
    assert "has no variable 'fc_0.w_1'" in caplog.text
    assert "fc_0.w_0" not in caplog.text
