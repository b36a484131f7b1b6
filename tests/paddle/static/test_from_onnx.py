"""`from_onnx`: which constants become parameters, and what the program then computes."""

import logging

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import InputError, ModelError, OptionError
from amp_transpiler.paddle.framework.backward import append_backward
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.static.onnx_import import from_onnx
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope
from tests import support

W = support.array

CONVNET = """(float[n,3,8,8] x) => (float[n,4] logits) {
    c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, conv_w, conv_b)
    b = BatchNormalization(c, bn_scale, bn_bias, bn_mean, bn_var)
    r = Relu(b)
    h = Mul(r, half)
    p = GlobalAveragePool(h)
    f = Flatten(p)
    d = Dropout(f, ratio)
    logits = Gemm<transB=1>(d, fc_w, fc_b)
}"""


def convnet(opset=18):
    text = CONVNET if opset >= 12 else CONVNET.replace("Dropout(f, ratio)", "Dropout<ratio=0.25>(f)")
    weights = {
        "conv_w": W(5, 3, 3, 3),
        "conv_b": W(5),
        "bn_scale": W(5, low=0.5),
        "bn_bias": W(5, seed=1),
        "bn_mean": W(5, seed=2),
        "bn_var": W(5, low=0.5, seed=3),
        "fc_w": W(4, 5),
        "fc_b": W(4),
        "half": np.float32(0.5),
        "ratio": np.float32(0.25),
    }
    if opset < 12:
        del weights["ratio"]
    return support.parse(text, opset=opset, ir_version=8 if opset < 12 else 10, **weights)


def build(model, **options):
    startup, scope = Program(), Scope()
    main = from_onnx(model, startup, **options)
    executor = Executor(CPUPlace())
    if startup.updates:
        executor.run(startup, scope=scope)
    return main, startup, scope, executor


def kinds(program, kind):
    return {name for name, about in program.persistables.items() if about.kind == kind}


@pytest.mark.parametrize("opset", [9, 13, 18, 21, 22])
def test_convnet_computes_the_same_once_switched_to_inference(opset):
    model = convnet(opset)
    before = model.SerializeToString(deterministic=True)
    main, _, scope, executor = build(model)
    assert model.SerializeToString(deterministic=True) == before
    assert kinds(main, "parameter") == {"conv_w", "conv_b", "bn_scale", "bn_bias", "fc_w", "fc_b"}
    assert kinds(main, "statistic") == {"bn_mean", "bn_var"}
    assert main.outputs == ["logits"]
    assert not main.model.graph.outputs
    assert main.var("x").shape == (-1, 3, 8, 8)
    x = W(6, 3, 8, 8)
    value = executor.run(main.clone(for_test=True), {"x": x}, ["logits"], scope)
    np.testing.assert_allclose(value[0], support.run(model, {"x": x})["logits"], rtol=1e-5, atol=1e-6)


def test_training_updates_statistics_and_draws_anew_with_every_run():
    main, _, scope, executor = build(convnet())
    x, mean = W(6, 3, 8, 8), scope["bn_mean"]
    first, batch = executor.run(main, {"x": x}, ["logits", "c"], scope)
    np.testing.assert_allclose(scope["bn_mean"], 0.9 * mean + 0.1 * batch.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-6)
    second = executor.run(main, {"x": x}, ["logits"], scope)[0]
    assert not np.array_equal(first, second)  # another mask: training statistics are the batch's both times
    assert int(scope["@random_step@"]) == 2


def test_an_attached_loss_has_gradients_for_every_parameter():
    main, _, scope, executor = build(convnet())
    builder = main.builder()
    logits = main.value("logits")
    loss = main.var(str(builder.mean(builder.mul(logits, logits), keepdims=False).name))
    pairs = append_backward(loss)
    assert {parameter.name for parameter, _ in pairs} == kinds(main, "parameter")
    slopes = executor.run(main, {"x": W(6, 3, 8, 8)}, [gradient for _, gradient in pairs], scope)
    assert all(np.isfinite(gradient).all() for gradient in slopes)
    by_name = {parameter.name: gradient for (parameter, _), gradient in zip(pairs, slopes, strict=True)}
    assert np.abs(by_name["fc_w"]).max() > 0


SLOTS = {
    "transposed": ("y = MatMul(x, t)", "t = Transpose(w)", {"w": W(4, 4)}, {"w"}),
    "reshaped": ("y = MatMul(x, t)", "t = Reshape(w, s)", {"w": W(16), "s": np.array([4, 4])}, {"w"}),
    "cast": ("y = MatMul(x, t)", "t = Cast<to=1>(w)", {"w": W(4, 4).astype(np.float16)}, {"w"}),
    "bias": ("y = Add(x, w)", "", {"w": W(4)}, {"w"}),
    "zero bias": ("y = Add(x, w)", "", {"w": np.zeros(4, np.float32)}, {"w"}),
    "positions": ("y = Add(x, w)", "", {"w": W(2, 4)}, {"w"}),
    "scalar": ("y = Add(x, w)", "", {"w": np.float32(1e-5)}, set()),
    "mask": ("y = Add(x, w)", "", {"w": np.array([[0, -1e9, 0, 0], [0, 0, 0, -1e9]], np.float32)}, set()),
    "infinite mask": ("y = Add(x, w)", "", {"w": np.array([0, -np.inf, 0, 0], np.float32)}, set()),
    "grid": ("y = Add(x, w)", "", {"w": np.array([[0.5, 1.5, 2.5, 3.5]] * 2, np.float32)}, set()),
    "factor": ("y = Mul(x, w)", "", {"w": W(4)}, set()),
    "slope": ("y = PRelu(x, w)", "", {"w": W(1)}, {"w"}),
    "both sides": ("y = MatMul(w, x)", "", {"w": W(2, 2)}, {"w"}),
    "einsum": ('y = Einsum<equation="ij,jk->ik">(x, w)', "", {"w": W(4, 4)}, {"w"}),
    "layer norm": ("y = LayerNormalization(x, w, b)", "", {"w": W(4), "b": W(4)}, {"w", "b"}),
    "written-out norm": (
        "q = Sqrt(v) z = Div(x, q) y = Mul(z, w)",
        "a = Mul(x, x) v = ReduceMean(a)",
        {"w": W(4)},
        {"w"},
    ),
    "constant node": ("y = MatMul(x, w)", "w = Constant<value = float[4,1] {1.5, 2.5, 3.5, 0.25}>()", {}, set()),
}


@pytest.mark.parametrize("case", SLOTS)
def test_slots(case):
    last, before, weights, expected = SLOTS[case]
    model = support.parse(f"(float[2,4] x) => (float[2,k] y) {{ {before} {last} }}", **weights)
    main, _, scope, executor = build(model)
    assert kinds(main, "parameter") == expected
    x = W(2, 4)
    value = executor.run(main, {"x": x}, ["y"], scope)[0]
    np.testing.assert_allclose(value, support.run(model, {"x": x})["y"], rtol=1e-5)


def test_embedding_tables_are_parameters_and_shared_scalars_are_not():
    model = support.parse(
        """(int64[n] ids) => (float[n,4] y, float[n,10] tied) {
            e = Gather(table, ids)
            s = Mul(e, two)
            y = Div(s, two)
            t = Transpose<perm=[1,0]>(table)
            tied = MatMul(y, t)
        }""",
        table=W(10, 4),
        two=np.float32(2),
    )
    main, _, scope, executor = build(model)
    assert set(main.persistables) == {"table"}
    value = executor.run(main, {"ids": np.array([3, 1])}, ["y"], scope)[0]
    np.testing.assert_array_equal(value, scope["table"][[3, 1]])


def test_weights_inside_a_branch_are_parameters_of_the_program():
    model = support.parse(
        """(float[2,4] x, bool c) => (float[2,4] y) {
            y = If(c) <
                then_branch = a () => (float[2,4] p) <float[4,4] inner = {1.5,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>
                    { p = MatMul(x, inner) },
                else_branch = b () => (float[2,4] q) { q = MatMul(x, outer) }
            >
        }""",
        outer=W(4, 4),
    )
    main, _, scope, executor = build(model)
    assert set(main.persistables) == {"inner", "outer"}
    x = W(2, 4)
    for chosen in (True, False):
        value = executor.run(main, {"x": x, "c": np.array(chosen)}, ["y"], scope)[0]
        np.testing.assert_allclose(value, x @ scope["inner" if chosen else "outer"], rtol=1e-5)


def test_batch_norms_that_share_statistics_get_their_own():
    model = support.parse(
        """(float[n,3] x) => (float[n,3] y) {
            a = BatchNormalization(x, one, zero, zero, one)
            y = BatchNormalization(a, one, zero, zero, one)
        }""",
        one=np.ones(3, np.float32),
        zero=np.zeros(3, np.float32),
    )
    main, _, scope, executor = build(model)
    assert len(kinds(main, "statistic")) == 4
    assert kinds(main, "parameter") == {"one", "zero"}
    x = W(5, 3)
    value = executor.run(main.clone(for_test=True), {"x": x}, ["y"], scope)[0]
    np.testing.assert_allclose(value, support.run(model, {"x": x})["y"], rtol=1e-5)
    executor.run(main, {"x": x}, ["y"], scope)
    np.testing.assert_array_equal(scope["zero"], np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("options", "trained", "frozen"),
    [
        ({"frozen": "conv|bn"}, {"fc_w", "fc_b"}, {"conv_w", "conv_b", "bn_scale", "bn_bias"}),
        ({"frozen": ".*", "trainable": ["^fc"]}, {"fc_w", "fc_b"}, {"conv_w", "conv_b", "bn_scale", "bn_bias"}),
        ({"trainable": "half"}, {"conv_w", "conv_b", "bn_scale", "bn_bias", "fc_w", "fc_b", "half"}, set()),
    ],
)
def test_patterns(options, trained, frozen, caplog):
    caplog.set_level(logging.INFO, "amp_transpiler.paddle.static.onnx_import")
    main, *_ = build(convnet(), **options)
    parameters = [about for about in main.persistables.values() if about.kind == "parameter"]
    assert {about.name for about in parameters if about.trainable} == trained
    assert {about.name for about in parameters if not about.trainable} == frozen
    assert all(name in caplog.text for name in trained | frozen)


def test_frozen_statistics_keep_the_inference_form():
    main, *_ = build(convnet(), frozen="^bn")
    node = next(node for node in main.model.graph if node.op_type == "BatchNormalization")
    assert len(node.outputs) == 1
    assert set(main.updates) == {"@random_step@"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "nothing_like_it"}, "trainable pattern 'nothing_like_it' matches no float constant"),
        ({"frozen": "("}, "frozen pattern '\\(' is not a regular expression"),
    ],
)
def test_bad_patterns(options, message):
    with pytest.raises(OptionError, match=message):
        from_onnx(convnet(), Program(), **options)


def test_two_programs_share_what_one_startup_program_makes():
    startup = Program()
    from_onnx(convnet(), startup)
    values = len(startup.updates)
    from_onnx(convnet(), startup)
    assert len(startup.updates) == values
    other = support.parse("(float[n,2] x) => (float[n,2] y) { y = Gemm(x, fc_w) }", fc_w=W(2, 2))
    with pytest.raises(InputError, match="initialises 'fc_w' as"):
        from_onnx(other, startup)


def test_a_training_program_is_refused_and_so_is_an_invalid_model():
    main, *_ = build(convnet())
    with pytest.raises(InputError, match="training program already"):
        from_onnx(main, Program())
    broken = support.parse("(float[2] x, int64[2] i) => (float[2] y) { y = Add(x, i) }")
    with pytest.raises(ModelError, match="invalid as it is"):
        from_onnx(broken, Program())


def test_large_weights_of_a_file_stay_on_disk_until_the_startup_program_runs(tmp_path):
    model = support.parse("(float[n,100] x) => (float[n,100] y) { y = MatMul(x, w) }", w=W(100, 100))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    startup, scope = Program(), Scope()
    from_onnx(tmp_path / "model.onnx", startup)
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="external data of 'w'"):
        Executor(CPUPlace()).run(startup, scope=scope)
    (tmp_path / "elsewhere").rename(tmp_path / "weights")
    Executor(CPUPlace()).run(startup, scope=scope)
    np.testing.assert_array_equal(scope["w"], W(100, 100))
