"""Statements of Paddle's pull request 29544 that no other test shows."""

import inspect
import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.update_passes.loss_scaling import ScalingRule
from tests import support
from tests.paddle import nets, text_nets
from tests.support import array, chain

BERT = pathlib.Path(__file__).resolve().parents[2] / "models" / "bert_1layer.onnx"


def test_decorate_takes_the_ten_arguments_of_the_document_in_its_order():
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["Exp"])
    settings = (lists, 128.0, 7, 3, 4.0, 0.25, True, True, False)
    decorated = static.amp.decorate(optimizer.Adam(0.001), *settings).options
    assert decorated.init_loss_scaling == 128.0
    assert decorated.rule == ScalingRule(7, 3, 4.0, 0.25)
    assert (decorated.dynamic, decorated.level, decorated.use_guard) == (True, "O2", False)
    assert "Exp" in decorated.lists.black_list
    guarded = static.amp.decorate(optimizer.Adam(0.001), *settings[:6], False, True, True).options
    assert (guarded.dynamic, guarded.level, guarded.use_guard) == (False, "O2", True)
    assert static.amp.decorate(optimizer.Adam(0.001), *settings[:7], False).options.level == "O1"


SIGNATURES = {
    # function: (parameters in the document's order, their defaults)
    "amp_init": (
        static.amp.decorate(optimizer.SGD(0.1)).amp_init,
        {"place": ..., "scope": None, "test_program": None, "use_fp16_test": False},
    ),
    "cast_model_to_fp16": (
        static.amp.cast_model_to_fp16,
        {"program": ..., "amp_lists": None, "use_fp16_guard": True},
    ),
    "cast_parameters_to_fp16": (
        static.amp.cast_parameters_to_fp16,
        {"place": ..., "program": ..., "scope": None, "to_fp16_var_names": None},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_in_the_document(name):
    function, expected = SIGNATURES[name]
    parameters = list(inspect.signature(function).parameters.values())
    defaults = {p.name: ... if p.default is p.empty else p.default for p in parameters[: len(expected)]}
    assert list(defaults.items()) == list(expected.items())


def test_pure_mode_has_more_low_nodes_and_fewer_casts_than_the_lists():
    """Section 1: the two shortcomings of the lists, counted on a transformer."""
    lists, pure = (amp.transpile(BERT, level=level, verify=False, prefer="size") for level in ("O1", "O2"))
    assert pure.low_nodes > lists.low_nodes > 0
    assert pure.casts < lists.casts


def test_casts_stand_before_and_after_an_operator_without_a_low_kernel():
    model = chain("MatMul({}, w)", "Asinh({})", "MatMul({}, w)", w=array(4, 4))
    program = amp.load(model)
    amp.cast_model_to_fp16(program)
    assert support.dtypes(program, "Asinh") == ["FLOAT"]
    assert ("v1", "FLOAT16", "FLOAT") in support.casts(program)
    assert ("v2", "FLOAT", "FLOAT16") in support.casts(program)


@pytest.mark.parametrize("guard", [None, "^(relu|pool|conv2|relu2)$"], ids=["no guard", "guard"])
def test_a_custom_black_operator_is_float32_with_and_without_the_guard(guard):
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["pool2d"])
    options = {"use_pure_fp16": True, "use_fp16_guard": guard is not None, "amp_lists": lists}
    net = text_nets.trainer(optimizer.Adam(0.001, multi_precision=True), guard=guard, **options)
    low = {name for name in ("conv1", "relu", "pool", "conv2", "relu2") if text_nets.kind(net, name) == "FLOAT16"}
    assert low == {"relu", "conv2", "relu2"} | (set() if guard else {"conv1"})


@pytest.mark.parametrize("name", ["Momentum", "Adam", "AdamW", "SGD", "Lamb"])
def test_optimizers_have_multi_precision(name):
    """Section 4 names the first three, and promises more."""
    built = getattr(optimizer, name)(learning_rate=0.01, multi_precision=True)
    net = nets.one_layer(built, use_pure_fp16=True, init_loss_scaling=64.0)
    before = np.array(net.scope[net.master])
    net.run(1.0)
    assert net.scope["w"].dtype == np.float16
    assert net.scope[net.master].dtype == np.float32
    assert not np.array_equal(net.scope[net.master], before)


# ---- section 2.5: the low-level functions ----


def classifier(is_train):
    """The document's network in small: a convolution, and the rest inside the guard."""
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with unique_name.guard(), static.program_guard(main, startup):
        image = static.data("image", [None, 1, 8, 8])
        label = static.data("label", [None, 1], "int64")
        hidden = static.nn.conv2d(image, num_filters=2, filter_size=3)
        with static.amp.fp16_guard():
            pooled = F.max_pool2d(F.relu(hidden), kernel_size=2, stride=2)
            predicted = F.softmax(static.nn.fc(pooled, size=4))
            result = F.cross_entropy(predicted, label, reduction="mean") if is_train else predicted
    return main, startup, result


FEED = {"image": array(4, 1, 8, 8), "label": np.arange(4).reshape(4, 1)}
LISTS = {"custom_black_list": ["pool2d"]}


@pytest.fixture(scope="module")
def trained():
    """A few pure steps of the classifier; the net, the test program that `amp_init` made low, and its output."""
    main, startup, loss = classifier(is_train=True)
    test, _, predicted = classifier(is_train=False)
    adam = optimizer.Adam(0.01, multi_precision=True)
    wrapped = static.amp.decorate(
        adam, amp.AutoMixedPrecisionLists(**LISTS), init_loss_scaling=128.0, use_pure_fp16=True
    )
    wrapped.minimize(loss, startup)
    net = nets.Net(main, startup, loss, wrapped).start(test_program=test)
    for _ in range(3):
        net.step(FEED)
    return net, test, predicted.name


def image_alone():
    return {"image": FEED["image"]}


def test_an_inference_program_of_its_own_predicts_with_the_trained_weights(trained, tmp_path):
    """The special case: built anew, cast with the same lists and guard, weights loaded."""
    net, test, predicted = trained
    (expected,) = net.executor.run(test, image_alone(), [predicted], scope=net.scope)
    static.save(net.main, tmp_path / "trained", net.scope)
    inference_program, _, output = classifier(is_train=False)
    names = amp.cast_model_to_fp16(inference_program, amp.AutoMixedPrecisionLists(**LISTS), use_fp16_guard=True)
    scope = static.Scope()
    static.load(inference_program, tmp_path / "trained", scope)
    amp.cast_parameters_to_fp16(nets.CPU, inference_program, scope, names)
    assert {name for name in scope if scope[name].dtype == np.float16} == set(names)
    (value,) = net.executor.run(inference_program, image_alone(), [output.name], scope=scope)
    np.testing.assert_array_equal(value, expected)


def test_cast_model_to_fp16_decides_as_decorate_does(trained):
    """The meaning of lists and guard is the same."""
    net, test, _ = trained
    inference_program, _, _ = classifier(is_train=False)
    amp.cast_model_to_fp16(inference_program, amp.AutoMixedPrecisionLists(**LISTS), use_fp16_guard=True)

    def types(program):
        return [(node.op_type, nets.makes(node)[0]) for node in nets.nodes(program, role="forward")]

    assert types(inference_program) == types(test)
    kinds = [kind for kind in types(inference_program) if kind[0] != "Cast"]
    assert [kind for kind in types(net.main) if kind[0] != "Cast"][: len(kinds)] == kinds


# ---- what pure mode saves ----


def test_low_parameters_and_gradients_take_half_the_bytes():
    sizes = {}
    for name, decorated in (("fp32", {"level": "O0"}), ("low", {"level": "O2", "init_loss_scaling": 64.0})):
        net = nets.one_layer(optimizer.SGD(0.1), **decorated)
        (gradient,) = net.run(1.0, fetch=["w@GRAD"])
        sizes[name] = (net.scope["w"].nbytes, np.asarray(gradient).nbytes)
    assert sizes["low"] == tuple(size // 2 for size in sizes["fp32"])
