"""Weight gradients of convolutions as products of unfolded operands, and which of them the price list prefers."""

import itertools

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.cost import predict
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.marked_gradients import marked_gradients
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.program.program import Program
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from amp_transpiler.training_passes import FuseProducts, WeightGradients
from amp_transpiler.training_passes.alive import Memory
from amp_transpiler.training_passes.convolution_layer import layer_of, replace
from amp_transpiler.training_passes.unfolded_gradients import Unfolding, unfold, unfoldings
from tests.training_passes.convolutions import LAYERS as WHOLE, feeds_of, trained

torch = pytest.importorskip("torch", reason="torch is the oracle: install the extra [torch]")

# name: (shape of x, shape of w, attributes)
LAYERS = {
    **{name: layer for name, layer in WHOLE.items() if layer[0][0] != "N"},
    "few channels, an even result": ((3, 3, 6, 6), (8, 3, 3, 3), "<pads = [1, 1, 1, 1]>"),
    "groups": ((2, 6, 5, 5), (4, 3, 3, 3), "<group = 2, pads = [1, 1, 1, 1]>"),
    "a channel a group": ((2, 4, 5, 5), (4, 1, 3, 3), "<group = 4, pads = [1, 1, 1, 1]>"),
    "a 1x1 kernel": ((2, 3, 4, 4), (4, 3, 1, 1), ""),
    "a 1x1 kernel with strides": ((2, 3, 5, 4), (4, 3, 1, 1), "<strides = [2, 3]>"),
}


def all_unfoldings(layer):
    """Every unfolding of a layer, also those that are never cheapest."""
    pairs = zip(layer.kernel, layer.strides, strict=True)
    axes = [(False, True) if stride == 1 and size > 1 else (False,) for size, stride in pairs]
    for on_gradient, whole in itertools.product(itertools.product(*axes), (False, True)):
        if not whole or (layer.groups == 1 and layer.samples > 1):
            yield Unfolding(on_gradient, whole)


def unfolded(layer, unfolding, dtype="float"):
    model = trained(*layer, dtype=dtype)
    (marked,) = marked_gradients(model.graph)
    read = layer_of(marked)
    replace(GraphBuilder(model), marked, read, lambda builder: unfold(builder, read, unfolding))
    verify(model, "unfolding")
    return model


def layer_read(layer, dtype="float"):
    (marked,) = marked_gradients(trained(*layer, dtype=dtype).graph)
    return layer_of(marked)


@pytest.mark.parametrize("name", LAYERS)
def test_every_unfolding_gives_the_same(run, name):
    layer = LAYERS[name]
    model = trained(*layer)
    feeds = feeds_of(model)
    expected = run(model, feeds)[0]
    for unfolding in all_unfoldings(layer_read(layer)):
        np.testing.assert_allclose(run(unfolded(layer, unfolding), feeds)[0], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_parts_give_the_same(run, name):
    layer = LAYERS[name]
    model = trained(*layer)
    feeds = feeds_of(model)
    expected = run(model, feeds)[0]
    for by_parts in unfoldings(layer_read(layer)):
        assert by_parts[0].parts == 1
        for unfolding in by_parts[1:]:
            np.testing.assert_allclose(run(unfolded(layer, unfolding), feeds)[0], expected, rtol=2e-5, atol=2e-5)


def test_a_transposed_convolution_is_unfolded_too(run):
    layer = ((4, 64, 28, 28), (64, 32, 3, 3), "<strides = [2, 2]>", "ConvTranspose")
    model = trained(*layer)
    feeds = feeds_of(model)
    expected = run(model, feeds)[0]
    assert WeightGradients("priced")(model).count == 1
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-3, atol=1e-3)


BIG = ((16, 8, 12, 12), (16, 8, 3, 3), "<pads = [1, 1, 1, 1]>")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_lose_no_more_than_one_rounding_does(dtype):
    # Products of samples are rounded once, so is their sum: 1.4 times the error of one rounding.
    rng = np.random.default_rng(5)
    low = trained(*BIG, dtype=dtype).graph.inputs[0].dtype.numpy()
    x, g = (rng.standard_normal(shape).astype(low) for shape in ((16, 8, 12, 12), (16, 16, 12, 12)))
    wide = [torch.from_numpy(value.astype(np.float64)) for value in (x, g)]
    exact = torch.nn.grad.conv2d_weight(wide[0], (16, 8, 3, 3), wide[1], padding=1).numpy()
    once = np.linalg.norm(exact.astype(low).astype(np.float64) - exact)
    for unfolding in all_unfoldings(layer_read(BIG, dtype)):
        program = emulate(Program(unfolded(BIG, unfolding, dtype)))
        names = [value.name for value in program.model.graph.inputs]
        feeds = {"x": x, "g": g, "w": np.zeros((16, 8, 3, 3), low)}
        result = amp.Session(program).run({name: feeds[name] for name in names})[0]
        error = np.linalg.norm(np.asarray(result).astype(np.float64) - exact)
        assert error < (1.1 if unfolding.whole else 1.7) * once


SAME = "<pads = [1, 1, 1, 1]>"
# name: (shape of x, shape of w, attributes, whether a product of unfolded operands takes its place, in float16)
PRICED = {
    "a large plane": ((32, 64, 56, 56), (64, 64, 3, 3), SAME, True),
    "the first layer": ((32, 3, 224, 224), (64, 3, 7, 7), "<pads = [3, 3, 3, 3], strides = [2, 2]>", True),
    "a large plane, 1x1": ((32, 64, 56, 56), (256, 64, 1, 1), "", True),
    "a small plane, 1x1": ((32, 2048, 7, 7), (512, 2048, 1, 1), "", False),
    "many results": ((32, 512, 7, 7), (512, 512, 3, 3), SAME, False),
}


@pytest.mark.parametrize(("x", "w", "attributes", "is_unfolded"), PRICED.values(), ids=PRICED)
def test_the_price_decides(x, w, attributes, is_unfolded):
    stays, model = (trained(x, w, attributes, dtype="float16") for _ in range(2))
    assert WeightGradients("priced")(model).count == int(is_unfolded)
    for each in (stays, model):
        FuseProducts()(each)
    before, after = (predict(each, DEFAULT_DEVICE, cuda_graph=True).milliseconds for each in (stays, model))
    assert (after < before) == is_unfolded


def most_alive(model):
    before, *during = Memory(model.graph).alive()
    return max(during) - before


def test_what_is_unfolded_is_split_where_memory_is_short():
    layer = ((32, 64, 56, 56), (64, 64, 3, 3), SAME)
    whole, split = unfolded(layer, Unfolding((False, False), whole=False)), trained(*layer)
    WeightGradients("priced")(split)
    gathers = [node.outputs[0].shape[1] for node in split.graph if node.op_type == "Gather"]
    assert max(gathers) < 9 * 56 * 56
    assert most_alive(split) < most_alive(whole) / 2
