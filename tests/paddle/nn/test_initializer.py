"""Initial values: their distributions, their seeds, and startup programs that are shared."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import nn as layers_of
from amp_transpiler.paddle.framework.parameters import create_parameter
from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program, program_guard
from amp_transpiler.paddle.framework.random import generator, global_seed, seed
from amp_transpiler.paddle.nn import functional, initializer as init
from amp_transpiler.paddle.param_attr import ParamAttr
from amp_transpiler.paddle.regularizer import L2Decay
from amp_transpiler.paddle.static import nn
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

MATRIX, FILTERS = (200, 300), (40, 20, 5, 5)
FAN_IN, FAN_OUT = 20 * 25, 40 * 25


def draw(initializer: init.Initializer, shape: tuple[int, ...]) -> np.ndarray:
    return initializer(generator(1, "w"), shape)


# Deviation, and the bound on the magnitude where there is one.
DISTRIBUTIONS = {
    "Normal": (init.Normal(0.0, 0.5), MATRIX, 0.5, None),
    "Uniform": (init.Uniform(-2.0, 2.0), MATRIX, 2 / 3**0.5, 2.0),
    "TruncatedNormal": (init.TruncatedNormal(0.0, 1.0), MATRIX, 0.8796, 2.0),
    "XavierNormal": (init.XavierNormal(), MATRIX, (2 / 500) ** 0.5, None),
    "XavierUniform": (init.XavierUniform(), MATRIX, (2 / 500) ** 0.5, (6 / 500) ** 0.5),
    "XavierUniform filters": (
        init.XavierUniform(),
        FILTERS,
        (2 / (FAN_IN + FAN_OUT)) ** 0.5,
        (6 / (FAN_IN + FAN_OUT)) ** 0.5,
    ),
    "XavierUniform fans given": (init.XavierUniform(3.0, 3.0), MATRIX, (1 / 3) ** 0.5, 1.0),
    "KaimingNormal": (init.KaimingNormal(), FILTERS, (2 / FAN_IN) ** 0.5, None),
    "KaimingUniform": (init.KaimingUniform(), FILTERS, (2 / FAN_IN) ** 0.5, (6 / FAN_IN) ** 0.5),
    "KaimingUniform leaky": (
        init.KaimingUniform(negative_slope=1.0, nonlinearity="leaky_relu"),
        MATRIX,
        (1 / 200) ** 0.5,
        (3 / 200) ** 0.5,
    ),
}


@pytest.mark.parametrize(("initializer", "shape", "std", "bound"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_distribution(initializer, shape, std, bound):
    values = draw(initializer, shape)
    assert values.shape == shape
    assert values.std() == pytest.approx(std, rel=0.02)
    assert abs(values.mean()) < 0.02 * std
    if bound is not None:
        assert 0.95 * bound < np.abs(values).max() <= bound


def test_mean_and_one_sided_truncation():
    values = draw(init.TruncatedNormal(3.0, 0.5, a=0.0, b=2.0), MATRIX)
    assert values.min() >= 3.0
    assert values.max() <= 4.0
    assert values.mean() > 3.3


def test_a_number_can_be_drawn():
    assert abs(draw(init.TruncatedNormal(), ())) <= 2


def test_assign_gives_the_value_in_the_shape_asked_for():
    np.testing.assert_array_equal(draw(init.Assign([1, 2, 3, 4]), (2, 2)), [[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"\[4\] cannot be a parameter of \[3\]"):
        draw(init.Assign([1, 2, 3, 4]), (3,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: init.Normal(std=-1.0),
        lambda: init.Uniform(1.0, -1.0),
        lambda: init.TruncatedNormal(a=2.0, b=1.0),
        lambda: init.TruncatedNormal(a=8.0, b=9.0),
        lambda: init.KaimingNormal(nonlinearity="cosine"),
    ],
    ids=["std", "bounds", "no interval", "far tail", "nonlinearity"],
)
def test_meaningless_arguments_are_refused(make):
    with pytest.raises(OptionError):
        make()


@pytest.mark.parametrize(
    ("attr", "expected"),
    [
        (None, ParamAttr()),
        (True, ParamAttr()),
        (False, None),
        ("mine", ParamAttr(name="mine")),
        (init.Constant(2.0), ParamAttr(initializer=init.Constant(2.0))),
        (ParamAttr(learning_rate=0.5), ParamAttr(learning_rate=0.5)),
    ],
    ids=str,
)
def test_attribute_forms(attr, expected):
    assert ParamAttr.parse(attr) == expected


def test_attribute_of_a_regularizer_and_of_nonsense():
    decay = L2Decay(0.1)
    parsed = ParamAttr.parse(decay)
    assert parsed is not None
    assert parsed.regularizer is decay
    with pytest.raises(OptionError, match="got 3"):
        ParamAttr.parse(3)


def test_parameter_honours_its_attribute():
    decay = L2Decay(0.1)
    attr = ParamAttr("mine", init.Constant(2.5), 0.1, decay, trainable=False, need_clip=False)
    about = create_parameter([2], attr=attr).info
    assert about is not None
    assert (about.name, about.kind, about.learning_rate) == ("mine", "parameter", 0.1)
    assert (about.regularizer, about.trainable, about.need_clip) == (decay, False, False)
    scope = Scope()
    Executor(CPUPlace()).run(default_startup_program(), scope=scope)
    np.testing.assert_array_equal(scope["mine"], np.float32([2.5, 2.5]))


def test_parameter_without_attribute_is_named_and_starts_as_paddle_has_it():
    weight, bias = create_parameter([30, 50]), create_parameter([4], is_bias=True)
    assert (weight.name, bias.name) == ("create_parameter_0.w_0", "create_parameter_1.b_0")
    scope = initial_values(default_startup_program())
    assert not scope[bias.name].any()
    assert np.abs(scope[weight.name]).max() == pytest.approx((6 / 80) ** 0.5, rel=0.05)
    with pytest.raises(OptionError, match="attr=False"):
        create_parameter([2], attr=False)


def initial_values(startup: Program) -> Scope:
    scope = Scope()
    Executor(CPUPlace()).run(startup, scope=scope)
    return scope


def built(startup: Program, size: int = 3) -> Program:
    main = Program()
    with program_guard(main, startup), unique_name.guard():
        nn.fc(data("x", [None, 4]), size)
    return main


def test_two_programs_share_a_startup_program_that_initialises_once():
    startup = Program()
    first = built(startup)
    count = startup.model.graph.num_nodes()
    second = built(startup)
    assert startup.model.graph.num_nodes() == count
    assert [p.name for p in first.all_parameters()] == [p.name for p in second.all_parameters()]


def test_another_shape_under_a_shared_name_is_an_error():
    startup = Program()
    built(startup)
    with pytest.raises(InputError, match=r"initialises 'fc_0.w_0'"):
        built(startup, size=5)


def test_another_shape_in_one_program_is_an_error():
    x = data("x", [None, 4])
    nn.fc(x, 3, weight_attr="shared")
    with pytest.raises(InputError, match="'shared' is"):
        nn.fc(x, 5, weight_attr="shared")


def drawn(random_seed=0, dropout=False, **names):
    """Return the weights of two layers, in the order of their creation."""
    main, startup = Program(), Program()
    startup.random_seed = random_seed
    with program_guard(main, startup):
        hidden = nn.fc(data("x", [None, 4]), 3, weight_attr=names.get("first"))
        nn.fc(functional.dropout(hidden) if dropout else hidden, 5, weight_attr=names.get("second"))
    scope = initial_values(startup)
    return [scope[p.name] for p in main.all_parameters() if scope[p.name].ndim == 2]


@pytest.fixture
def seeds():
    before = global_seed()
    yield
    seed(before)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_order_of_creation_decides_and_not_the_names(seeds):
    first = drawn(7)
    assert same(first, drawn(7))  # under other names: there is no unique_name.guard
    assert same(first, drawn(7, first="b", second="a"))
    assert same(first, drawn(7, dropout=True))
    assert not same(first, drawn(8))
    seed(123)
    drawn_now = drawn()
    assert not same(drawn_now, drawn())  # the next ones
    seed(123)
    assert same(drawn_now, drawn())
    assert not np.array_equal(drawn_now[0][:3, :3], drawn_now[1][:3, :3])


def test_the_order_of_runs_decides_where_programs_share_a_seed(seeds):
    programs = []
    for _ in range(2):
        main, startup = Program(), Program()
        with program_guard(main, startup):
            create_parameter([4, 4])
        programs.append((startup, main.all_parameters()[0].name))
    (first, a), (second, b) = programs
    seed(5)
    value_of_first, two = initial_values(first)[a], initial_values(second)[b]
    seed(5)
    np.testing.assert_array_equal(initial_values(second)[b], value_of_first)
    np.testing.assert_array_equal(initial_values(first)[a], two)


def test_an_open_session_of_a_startup_program_knows_a_new_seed(seeds):
    startup, executor, scope = Program(), Executor(CPUPlace()), Scope()
    with program_guard(Program(), startup):
        create_parameter([4, 4], name="w")
    rows = []
    for number in (1, 2, 1):
        seed(number)
        executor.run(startup, scope=scope)
        rows.append(scope["w"])
    executor.run(startup, scope=scope)
    rows.append(scope["w"])
    assert not np.array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(rows[0], rows[3])


def test_the_global_seed_counts_where_a_program_has_none():
    before = global_seed()
    values = []
    try:
        for number in (3, 3, 4):
            seed(number)
            startup = Program()
            built(startup)
            values.append(initial_values(startup)["fc_0.w_0"])
    finally:
        seed(before)
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_parameters_of_one_program_differ():
    x = data("x", [None, 4])
    nn.fc(x, 4)
    nn.fc(x, 4)
    scope = initial_values(default_startup_program())
    assert not np.array_equal(scope["fc_0.w_0"], scope["fc_1.w_0"])
    assert [p.name for p in default_main_program().all_parameters()] == [
        "fc_0.w_0",
        "fc_0.b_0",
        "fc_1.w_0",
        "fc_1.b_0",
    ]


def _drawn(initializer, *shape):
    return initializer(np.random.default_rng(0), shape)


def test_orthogonal_rows_or_columns():
    for shape in ((4, 6), (6, 4), (5, 2, 3)):
        matrix = _drawn(init.Orthogonal(2.0), *shape).reshape(shape[0], -1)
        gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(gram, 4.0 * np.eye(len(gram)), atol=1e-12)


def test_dirac_filters_leave_channels_as_they_are():
    filters = _drawn(init.Dirac(groups=2), 4, 3, 3, 5)
    assert filters.sum() == 4
    assert [tuple(place) for place in np.argwhere(filters)] == [(0, 0, 1, 2), (1, 1, 1, 2), (2, 0, 1, 2), (3, 1, 1, 2)]


def test_bilinear_filters_enlarge():
    np.testing.assert_allclose(_drawn(init.Bilinear(), 1, 1, 4, 4)[0, 0, 1], np.array([1, 3, 3, 1]) * 3 / 16)


@pytest.mark.parametrize(
    ("initializer", "shape"),
    [(init.Orthogonal(), (3,)), (init.Dirac(), (3, 3)), (init.Dirac(2), (3, 3, 1)), (init.Bilinear(), (1, 1, 2, 3))],
)
def test_shapes_that_an_initializer_has_no_values_for(initializer, shape):
    with pytest.raises(InputError):
        _drawn(initializer, *shape)


def test_global_initial_values_are_those_of_layers_without_others():
    init.set_global_initializer(init.Constant(3.0), init.Constant(4.0))
    try:
        layers = [
            layers_of.Linear(2, 2),
            layers_of.LayerNorm(2),
            layers_of.Linear(2, 2, weight_attr=init.Constant(1.0)),
        ]
    finally:
        init.set_global_initializer(None)
    after = layers_of.Linear(2, 2)
    scope = Scope()
    Executor(CPUPlace()).run(default_startup_program(), scope=scope)
    starts = [float(scope[layer.weight.name].flat[0]) for layer in layers]
    assert starts == [3.0, 1.0, 1.0]
    assert [float(scope[layer.bias.name].flat[0]) for layer in layers] == [4.0] * 3
    assert float(scope[after.bias.name].flat[0]) == 0.0
    with pytest.raises(OptionError, match="weight_init must be an Initializer or None"):
        init.set_global_initializer(3.0)


def test_gains():
    assert init.calculate_gain("conv2d") == 1.0
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3)
    assert init.calculate_gain("leaky_relu", 1.0) == pytest.approx(1.0)
