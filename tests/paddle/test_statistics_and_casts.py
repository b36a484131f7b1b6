"""Statistics, casts, writes in place, control flow, wrapping, in small programs."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import debugging, optimizer, static
from tests.paddle import nets, text_nets
from tests.paddle.text_nets import losses, trainer
from tests.support import array, parse, run

LOOP = """(float[1,2,4,4] x, int64 n) => (float[1,2,4,4] y) {
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, x) <body = body (int64 i, bool c, float[1,2,4,4] h) => (bool c2, float[1,2,4,4] h2)
        { c2 = Identity (c) [conv] k = Conv <pads = [1, 1, 1, 1]> (h, w) [add] h2 = Add (k, h) }>
}"""


@pytest.mark.parametrize("inner", [False, True])
def test_statistics_count_the_body_of_a_loop(inner):
    """Convolution and addition once each as low, in the second of two graphs."""
    program = amp.load(parse(LOOP, w=array(2, 2, 3, 3, scale=0.2)))
    amp.cast_model_to_fp16(program)
    stats = debugging.collect_operator_stats(program, print_subblocks=inner)
    assert "Loop" in stats
    assert ("Conv" in stats) is inner
    if inner:
        assert (stats["Conv"].fp16, stats["Conv"].fp32) == (1, 0)
        assert (stats["Add"].fp16, stats["Add"].fp32) == (1, 0)


def test_statistics_of_a_plain_program():
    """One low convolution, one low addition, one fp32 logarithm."""
    body = "a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Add (a, a) y = Exp (b)"
    program = amp.load(parse(f"(float[1,2,4,4] x) => (float[1,2,4,4] y) {{ {body} }}", w=array(2, 2, 3, 3, scale=0.2)))
    amp.cast_model_to_fp16(program, level="O1")
    stats = debugging.collect_operator_stats(program)
    assert (stats["Conv"].fp16, stats["Add"].fp16, stats["Exp"].fp32) == (1, 1, 1)


LINEAR = "(float[n,4] x) => (float[n,4] y) { [mm] m = MatMul (x, w) [bias] y = Add (m, b) }"
LINEAR_WEIGHTS = {"w": array(4, 4, scale=0.3), "b": array(4, scale=0.1)}


def test_a_linear_layer_at_o1_has_three_casts():
    """x and W are cast down, the product up, since promotion keeps the addition of the bias in fp32."""
    main, _ = text_nets.loaded(LINEAR, LINEAR_WEIGHTS)
    amp.cast_model_to_fp16(main, level="O1", use_promote=True)
    casts = sorted((nets.reads(node)[0], nets.makes(node)[0]) for node in nets.nodes(main, "Cast"))
    assert casts == [("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT16"), ("FLOAT16", "FLOAT")]
    assert main.var("y").dtype == "float32"


def test_a_linear_layer_at_o2_has_one_cast_of_its_own():
    """Parameters are low themselves; what is left is the input's. (Paddle's five count its optimizer's.)"""
    main, _ = text_nets.loaded(LINEAR, LINEAR_WEIGHTS)
    assert amp.cast_model_to_fp16(main) == {"w", "b"}
    assert [nets.reads(node) for node in nets.nodes(main, "Cast")] == [["FLOAT"]]
    assert main.var("y").dtype == "float16"


def test_writing_a_slice_and_a_layer_norm_train_at_o2():
    """Paddle writes a slice in place; ONNX's ScatterND gives a new tensor. LayerNormalization runs low."""
    text = """(float[n,4,6] x) => (float[n,4,6] y) {
        [mm] h = MatMul (x, w) [norm] k = LayerNormalization <axis = -1> (h, s, b)
        [part] p = Slice (k, zero, one, batch) [t] t = Mul (p, p) [at] y = ScatterND (k, row, t)
    }"""
    weights = {"w": array(6, 6, scale=0.3), "s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)}
    integers = {"zero": np.array([0]), "one": np.array([1]), "batch": np.array([0]), "row": np.array([[0]])}
    net = trainer(optimizer.AdamW(0.01), text, weights | integers, level="O2", target=[None, 4, 6])
    assert text_nets.kind(net, "norm") == "FLOAT16"
    feed = {"x": array(3, 4, 6), "target": array(3, 4, 6, seed=1, scale=0.1)}
    casts = losses(net, [feed] * 4)
    assert np.isfinite(casts).all()
    assert casts[-1] < casts[0]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_branch_with_a_black_operator(level):
    """If with Log inside converts, and gives what fp32 gives in both branches."""
    then = "then () => (float[2,4] t) { [log] t = Log (h) }"
    other = "other () => (float[2,4] e) { [relu] e = Relu (h) }"
    body = f"m = MatMul (x, w) h = Abs (m) y = If (c) <then_branch = {then}, else_branch = {other}>"
    model = parse(f"(float[2,4] x, bool c) => (float[2,4] y) {{ {body} }}", w=array(4, 4))
    program = amp.load(model)
    amp.cast_model_to_fp16(program, level=level)
    for branch in (True, False):
        feeds = {"x": array(2, 4, seed=3), "c": np.array(branch)}
        expected, casts = run(model, feeds)["y"], run(amp.emulate(program), feeds)["y"]
        np.testing.assert_allclose(casts, expected, rtol=2e-2, atol=2e-2)


def test_consumers_are_found_in_order():
    """Who reads a tensor, in the order of the program; Paddle's index of -1 is an empty list."""
    program = amp.load(parse("(float[4] x) => (float[4] y) { [a] a = Relu (x) [b] b = Exp (a) [c] y = Add (b, a) }"))
    assert [node.name for node in program.value("a").consumers()] == ["b", "c"]
    assert list(program.value("y").consumers()) == []
    assert program.find("absent") is None


class Distributed:
    """Hands everything on to an optimizer, as a distributed one does."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("pure", [False, True])
def test_a_wrapped_wrapper_still_has_scale_and_amp_init(pure):
    """O1 and pure; there is no distributed training here, so anything that hands on stands for it."""
    main, startup = text_nets.loaded(LINEAR, LINEAR_WEIGHTS)
    with static.program_guard(main, startup):
        loss = text_nets.squared_error(main, main.var("y"), static.data("target", [None, 4]))
        inner = static.amp.decorate(optimizer.Adam(multi_precision=True), use_pure_fp16=pure, init_loss_scaling=64.0)
        outer = Distributed(inner)
        outer.minimize(loss, startup)
    net = nets.Net(main, startup, loss, outer).start()
    (scale,) = net.step({"x": array(2, 4), "target": array(2, 4)}, [outer.get_loss_scaling()])
    assert scale.item() == 64.0
    assert net.scope["w"].dtype == (np.float16 if pure else np.float32)


def test_feeds_take_the_place_of_readers():
    """ONNX has no reader operators; sources without inputs are left alone, and feeds keep their type."""
    body = "r = RandomNormal <shape = [2, 4], seed = 1.0> () a = MatMul (x, w) y = Add (a, r)"
    program = amp.load(parse(f"(float[2,4] x) => (float[2,4] y) {{ {body} }}", w=array(4, 4)))
    amp.cast_model_to_fp16(program)
    assert program.value("x").dtype.name == "FLOAT"
    assert run(amp.emulate(program), {"x": array(2, 4)})["y"].shape == (2, 4)
