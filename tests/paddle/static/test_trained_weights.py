"""Which initializers `from_onnx` trains, as two exporters write layers; and the warnings about those it does not."""

import logging

import numpy as np
import onnx
import pytest

from amp_transpiler import CPUPlace, optimizer, static, tensor
from amp_transpiler.errors import InputError
from amp_transpiler.paddle.static.onnx_import import from_onnx
from tests import support

W = support.array
ONES, ZEROS = np.ones(2, np.float32), np.zeros(2, np.float32)
# A layer before, so that what follows reads what was learnt.
CONV = "h = Conv(x, conv_w)"
LINEAR = "h = MatMul(x, fc_w)"
GROUPS = (
    "g = Reshape(h, in_groups) n = InstanceNormalization(g, {}, {}) u = Reshape(n, back) m = Mul(u, s) y = Add(m, b)"
)
SIZES = {"in_groups": np.array([0, 2, -1]), "back": np.array([0, 4, 4, 4])}
ANGLES = np.arange(4)[:, None] / 7.0 ** np.arange(2)[None]
WAVES = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], 1).astype(np.float32)

IMAGES = {
    "group norm, constants of nodes": (
        "one = Constant<value_floats=[1.0, 1.0]>() zero = Constant<value_floats=[0.0, 0.0]>() "
        + CONV
        + " "
        + GROUPS.format("one", "zero"),
        {"s": W(4, 1, 1), "b": W(4, 1, 1), **SIZES},
        {"conv_w", "s", "b"},
    ),
    "group norm, constants in initializers": (
        CONV + " " + GROUPS.format("val_8", "val_11"),
        {"val_8": ONES, "val_11": ZEROS, "s": W(4, 1, 1), "b": W(4, 1, 1), **SIZES},
        {"conv_w", "s", "b"},
    ),
    "group norm, constants under any name": (
        CONV + " " + GROUPS.format("ones", "zeros"),
        {"ones": ONES, "zeros": ZEROS, "s": W(4, 1, 1), "b": W(4, 1, 1), **SIZES},
        {"conv_w", "s", "b"},
    ),
    "fresh group norm": (
        CONV + " " + GROUPS.format("val_8", "val_11"),
        {"val_8": ONES, "val_11": ZEROS, "s": np.ones((4, 1, 1), "f"), "b": np.zeros((4, 1, 1), "f"), **SIZES},
        {"conv_w", "s", "b"},
    ),
    "instance norm of its own": (
        CONV + " y = InstanceNormalization(h, scale, bias)",
        {"scale": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)},
        {"conv_w", "scale", "bias"},
    ),
    "instance norm without": (
        CONV + " y = InstanceNormalization(h, val_3, val_7)",
        {"val_3": np.ones(4, np.float32), "val_7": np.zeros(4, np.float32)},
        {"conv_w"},
    ),
    "instance norm without, its constants made initializers": (
        CONV + ' y = InstanceNormalization(h, "/m/Constant_1_output_0", "/m/Constant_output_0")',
        {"/m/Constant_1_output_0": np.ones(4, np.float32), "/m/Constant_output_0": np.zeros(4, np.float32)},
        {"conv_w"},
    ),
    "layer norm over channels, written out": (
        CONV
        + " u = ReduceMean<axes=[1]>(h) d = Sub(h, u) q = Mul(d, d) v = ReduceMean<axes=[1]>(q) e = Add(v, eps)"
        + " r = Sqrt(e) z = Div(d, r) ws = Unsqueeze(s, ax) wb = Unsqueeze(b, ax) m = Mul(ws, z) y = Add(m, wb)",
        {"eps": np.float32(1e-6), "s": W(4), "b": W(4), "ax": np.array([1, 2])},
        {"conv_w", "s", "b"},
    ),
    "weight normalisation": (
        "l = ReduceL2<keepdims=1>(v) d = Div(g, l) w = Mul(v, d) h = Conv(x, conv_w) y = Conv(h, w)",
        {"v": W(4, 4, 1, 1), "g": W(1, 1, 1, 1)},
        {"conv_w", "v", "g"},
    ),
    "standardised convolution": (
        "u = ReduceMean<axes=[1,2,3]>(v) d = Sub(v, u) w = Mul(g, d) h = Conv(x, conv_w) y = Conv(h, w)",
        {"v": W(4, 4, 1, 1), "g": W(4, 1, 1, 1)},
        {"conv_w", "v", "g"},
    ),
    "learnt positions": (
        "p = Conv(grid, w) h = Conv(x, conv_w) y = Add(h, p)",
        {"grid": W(1, 3, 4, 4), "w": W(4, 3, 1, 1)},
        {"conv_w", "w"},
    ),
    "biases by position": (
        "t = GatherND(table, at) u = Unsqueeze(t, ax) h = Conv(x, conv_w) y = Add(h, u)",
        {"table": W(9, 4, 4), "at": np.arange(4)[:, None], "ax": np.array([0])},
        {"conv_w", "table"},
    ),
    "standardised by a batch norm of ones": (
        (
            "v1 = Reshape(v, one_row) u = ReduceMean<axes=[0,2],keepdims=0>(v1) q = Mul(v1, v1) "
            "s = ReduceMean<axes=[0,2],keepdims=0>(q) n = BatchNormalization(v1, val_8, val_12, u, s) "
            "w = Reshape(n, four) h = Conv(x, conv_w) y = Conv(h, w)"
        ),
        {"v": W(4, 4, 1, 1), "val_8": np.ones(4, "f"), "val_12": np.zeros(4, "f")}
        | {"one_row": np.array([1, 4, 4]), "four": np.array([4, 4, 1, 1])},
        {"conv_w", "v"},
    ),
    "an image that is prepared": (
        "a = Add(x, mean) i = Mul(a, inverse) c = Sub(i, shift) y = Conv(c, conv_w)",
        {"mean": W(1, 3, 1, 1), "inverse": W(3, 1, 1), "shift": W(1, 3, 1, 1)},
        {"conv_w"},
    ),
}
ROWS = {
    "the bias of one unit": ("u = MatMul(x, one_w) y = Add(u, b)", {"one_w": W(4, 1), "b": W(1)}, {"one_w", "b"}),
    "a number behind several units": (LINEAR + " y = Add(h, b)", {"b": W(1)}, {"fc_w"}),
    "layer scale": (LINEAR + " y = Mul(gamma, h)", {"gamma": W(4)}, {"fc_w", "gamma"}),
    "fresh layer scale": (LINEAR + " y = Mul(gamma, h)", {"gamma": np.full(4, 1.0, np.float32)}, {"fc_w", "gamma"}),
    "learnt gate": (LINEAR + " y = Mul(h, gate)", {"gate": W(2, 4)}, {"fc_w", "gate"}),
    "mask": (LINEAR + " y = Mul(h, m)", {"m": np.tril(np.ones((2, 4), np.float32))}, {"fc_w"}),
    "strides": (LINEAR + " y = Mul(h, m)", {"m": np.array([8, 8, 16, 32], np.float32)}, {"fc_w"}),
    "rotation": (LINEAR + " y = Mul(h, m)", {"m": np.cos(ANGLES[:2].repeat(2, 1)).astype("f")}, {"fc_w"}),
    "waves": (LINEAR + " y = Add(h, m)", {"m": WAVES[:2]}, {"fc_w"}),
    "learnt centre": (LINEAR + " y = Sub(h, c)", {"c": W(4)}, {"fc_w", "c"}),
    "learnt divisor": (LINEAR + " y = Div(h, c)", {"c": W(4)}, {"fc_w", "c"}),
    "a number": (LINEAR + " y = Div(h, c)", {"c": np.float32(2.5)}, {"fc_w"}),
    "class token": (
        LINEAR + " t = Expand(cls, size) y = Concat<axis=0>(t, h)",
        {"cls": W(1, 4), "size": np.array([1, 4])},
        {"fc_w", "cls"},
    ),
    "padding": (LINEAR + " y = Concat<axis=0>(z, h)", {"z": np.zeros((1, 4), np.float32)}, {"fc_w"}),
    "frequencies": (
        LINEAR + ' a = Einsum<equation="i,j->ij">(t, f) c = Cos(a) y = Mul(h, c)',
        {"t": np.arange(2, dtype="f"), "f": W(4)},
        {"fc_w"},
    ),
    "a bias of fused Gelu": (LINEAR + " y = com.microsoft.BiasGelu(h, b)", {"b": W(4)}, {"fc_w", "b"}),
}
CASES = {
    **{name: ("float[n,3,4,4] x", {"conv_w": W(4, 3, 1, 1)}, *case) for name, case in IMAGES.items()},
    **{name: ("float[2,4] x", {"fc_w": W(4, 4)}, *case) for name, case in ROWS.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_trained(case):
    options, weights, text, more, expected = CASES[case]
    used = {name: value for name, value in weights.items() if name in text}
    model = support.parse(
        f"({options}) => (float y) {{ {text} }}", opset=13, imports=', "com.microsoft": 1', **used, **more
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    main = from_onnx(model, static.Program())
    assert {name for name, about in main.persistables.items() if about.kind == "parameter"} == expected


# ---- warnings ----


def warnings_of(caplog, model, **options):
    with caplog.at_level(logging.WARNING):
        main = from_onnx(model, static.Program(), **options)
    return main, [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def lstm():
    return support.parse(
        """(float[t,n,3] x) => (float[t,n,2] y) {
            h, last, cell = LSTM<hidden_size=4>(x, w, r, b)
            flat = Squeeze(h, axis)
            y = MatMul(flat, head)
        }""",
        w=W(1, 16, 3),
        r=W(1, 16, 4),
        b=W(1, 32),
        axis=np.array([1]),
        head=W(4, 2),
    )


def test_an_lstm_is_trained(caplog):
    main, told = warnings_of(caplog, lstm())
    assert sorted(p.name for p in main.all_parameters()) == ["b", "head", "r", "w"]
    assert not told


def test_weights_of_an_operator_without_a_gradient_are_a_warning_and_the_head_is_trained(caplog):
    model = support.parse(
        """(float[n,3,4,4] x, float[n,18,2,2] offset) => (float[n,2,2,5] y) {
            h = DeformConv(x, w, offset)
            y = MatMul(h, head)
        }""",
        opset=19,
        w=W(2, 3, 3, 3),
        head=W(2, 5),
    )
    main, told = warnings_of(caplog, model)
    assert [p.name for p in main.all_parameters()] == ["head"]
    assert len(told) == 1
    assert "weights of DeformConv 'DeformConv_h' are not trained: w; and nothing before" in told[0]
    assert "no gradient rule" in told[0]


def test_integer_weights_are_a_warning_that_names_them(caplog):
    model = support.parse(
        """(uint8[n,4] x) => (float[n,2] y) {
            q = MatMulInteger(x, w_int)
            f = Cast<to=1>(q)
            y = MatMul(f, head)
        }""",
        w_int=np.ones((4, 3), np.int8),
        head=W(3, 2),
    )
    main, told = warnings_of(caplog, model)
    assert [p.name for p in main.all_parameters()] == ["head"]
    assert len(told) == 1
    assert "quantised" in told[0]
    assert "w_int" in told[0]


CONSTANT = "(float[2,2] x) => (float[2,1] y) { w = Constant<value = float[2,1] {1.5, 2.5}>() y = MatMul(x, w) }"


def test_a_constant_node_is_trained_only_where_that_is_asked(caplog):
    main, told = warnings_of(caplog, support.parse(CONSTANT))
    assert not main.all_parameters()
    assert len(told) == 1
    assert "Constant nodes make w (MatMul" in told[0]
    assert "constant_nodes=True" in told[0]
    for asked in ({"trainable": "^w$"}, {"constant_nodes": True}):
        caplog.clear()
        main, told = warnings_of(caplog, support.parse(CONSTANT), **asked)
        assert [p.name for p in main.all_parameters()] == ["w"]
        assert not told


def test_an_ordinary_model_has_no_warning(caplog):
    text = "(float[n,4] x) => (float[n,2] y) { h = Gemm(x, w, b) r = Relu(h) s = Mul(r, half) y = MatMul(s, v) }"
    model = support.parse(text, w=W(4, 3), b=W(3), v=W(3, 2), half=np.float32(0.5))
    assert warnings_of(caplog, model)[1] == []


def parameters(name):
    return static.nn.create_parameter([4, 4], "float32", name=name)


STOPS = {
    "a step": (lambda h: tensor.cast(tensor.cast(h, "int64"), "float32"), "gradients stop at Cast"),
    "nothing": (lambda _: tensor.full([4], 1.0), "it does not depend on"),
}


@pytest.mark.parametrize(("change", "reason"), STOPS.values(), ids=STOPS)
def test_a_parameter_without_a_gradient_is_a_warning_that_names_it(caplog, change, reason):
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [None, 4])
        lost = change(tensor.matmul(x, parameters("lost")))
        loss = tensor.mean(tensor.matmul(x, parameters("kept")) + lost)
        with caplog.at_level(logging.WARNING):
            pairs = static.append_backward(loss)
    assert [p.name for p, _ in pairs] == ["kept"]
    assert [
        r.getMessage() for r in caplog.records if "'lost' will not train" in r.getMessage() and reason in r.getMessage()
    ]


def test_a_quantised_model_is_refused_with_the_nodes_that_stop_its_gradients():
    model = support.parse(
        """(float[n,4] x) => (float[n,2] y) {
            h = MatMul(x, w)
            [to_bytes] q = QuantizeLinear(h, scale)
            y = DequantizeLinear(q, scale)
        }""",
        w=W(4, 2),
        scale=np.float32(0.1),
    )
    main = from_onnx(model, static.Program())
    with static.program_guard(main, static.Program()):
        loss = tensor.mean(main.var("y"))
        with pytest.raises(InputError, match=r"gradient for none of 'w': gradients stop at QuantizeLinear 'to_bytes'"):
            optimizer.SGD(0.1).minimize(loss)


def test_a_parameter_that_is_left_out_on_purpose_is_no_warning(caplog):
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [None, 4])
        loss = tensor.mean(tensor.matmul(tensor.matmul(x, parameters("a")), parameters("b")))
        with caplog.at_level(logging.WARNING):
            optimizer.SGD(0.1, parameters=["b"]).minimize(loss)
            static.append_backward(loss, no_grad_set={"a"})
    assert not caplog.records


def test_a_group_norm_of_an_exporter_learns():
    text, more, _ = IMAGES["group norm, constants in initializers"]
    model = support.parse(f"(float[n,3,4,4] x) => (float[n,4,4,4] y) {{ {text} }}", **more, conv_w=W(4, 3, 1, 1))
    startup, scope = static.Program(), static.Scope()
    main = from_onnx(model, startup)
    with static.program_guard(main, startup):
        y = main.var("y")
        optimizer.SGD(0.1).minimize(tensor.mean(y * y * y), startup)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    before = {name: scope[name] for name in ("conv_w", "s", "b")}
    executor.run(main, {"x": W(2, 3, 4, 4)}, scope=scope)
    assert all((scope[name] != value).any() for name, value in before.items())


def test_a_weight_learns_through_the_statistics_that_standardise_it():
    text, more, expected = IMAGES["standardised by a batch norm of ones"]
    model = support.parse(
        f"(float[n,3,4,4] x) => (float[n,4,4,4] y) {{ {text} }}", opset=13, **more, conv_w=W(4, 3, 1, 1)
    )
    startup, scope = static.Program(), static.Scope()
    main = from_onnx(model, startup)
    executor, x = static.Executor(CPUPlace()), W(2, 3, 4, 4)
    executor.run(startup, scope=scope)
    (value,) = executor.run(main, {"x": x}, ["y"], scope=scope)
    np.testing.assert_allclose(value, support.run(model, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    with static.program_guard(main, startup):
        y = main.var("y")
        pairs = static.append_backward(tensor.mean(y * y * y))
    assert {parameter.name for parameter, _ in pairs} == expected
    slopes = executor.run(main, {"x": x}, [slope for _, slope in pairs], scope=scope)
    assert all(np.abs(slope).max() > 1e-4 for slope in slopes)


def test_layers_that_share_running_statistics_by_identity_each_get_their_own():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y)
        <float[3] s = {1.5, 0.5, 1.0}, float[3] b = {0.1, 0.2, 0.3}, float[3] s2 = {0.5, 1.5, 2.0},
         float[3] b2 = {0.3, 0.1, 0.2}, float[3] mean = {0.0, 0.0, 0.0}, float[3] var = {1.0, 1.0, 1.0}> {
            mean2 = Identity(mean)
            var2 = Identity(var)
            h = BatchNormalization(x, s, b, mean, var)
            y = BatchNormalization(h, s2, b2, mean2, var2)
        }""")
    main = from_onnx(model, static.Program())
    assert {parameter.name for parameter in main.all_parameters()} == {"s", "b", "s2", "b2"}
    assert sum(info.kind == "statistic" for info in main.persistables.values()) == 4
    assert len(set(main.updates)) == 4


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_an_lstm_learns_at_every_level(level):
    main, startup = lstm_program()
    with static.program_guard(main, startup):
        target = static.data("target", ["t", "n", 2])
        loss = tensor.mean((main.var("y") - target) * (main.var("y") - target))
        adam = optimizer.Adam(0.05, multi_precision=level == "O2")
        if level != "O0":
            adam = static.amp.decorate(adam, level=level, use_dynamic_loss_scaling=True)
        adam.minimize(loss)
    scope, exe = static.Scope(), static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    before = {name: np.asarray(scope[name]).copy() for name in "wrb"}
    losses = []
    for step in range(12):
        feed = {"x": W(4 + step % 2, 3, 3, seed=1), "target": W(4 + step % 2, 3, 2, seed=2)}
        losses.append(float(exe.run(main, feed=feed, fetch_list=[loss], scope=scope)[0]))
    assert losses[-1] < 0.7 * losses[0]
    assert all(np.abs(np.asarray(scope[name]) - before[name]).max() > 1e-3 for name in before)


def lstm_program():
    startup = static.Program()
    return from_onnx(lstm(), startup), startup
