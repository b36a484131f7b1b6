"""Formulations of a convolution's weight gradient, and what the CPU runs in place of kernels that are slow there."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.paddle import static
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.training_passes import CancelTransposes, PlainForCpu, WeightGradients
from tests.support import array, parse
from tests.training_passes.convolutions import LAYERS, feeds_of, trained


@pytest.mark.parametrize("formulation", ["taps", "columns", "auto"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_every_formulation_gives_the_same(run, layer, formulation):
    model = trained(*layer)
    feeds = feeds_of(model)
    expected = run(model, feeds)
    assert WeightGradients(formulation)(model).count == 1
    verify(model, "writing weight gradients")
    assert [node.op_type for node in model.graph].count("Conv") == 1  # the forward pass
    np.testing.assert_allclose(run(model, feeds)[0], expected[0], rtol=2e-5, atol=2e-5)


def test_a_kernel_of_very_many_taps_stays_a_convolution():
    model = trained((1, 1, 600), (4, 1, 256))
    assert WeightGradients("auto")(model).count == 0


def test_a_transposed_convolution_has_a_weight_gradient_of_the_same_kind(run):
    model = trained((2, 3, 4, 4), (3, 5, 3, 3), "<strides = [2, 2]>", op_type="ConvTranspose")
    feeds = feeds_of(model)
    expected = run(model, feeds)
    assert WeightGradients("taps")(model).count == 1
    np.testing.assert_allclose(run(model, feeds)[0], expected[0], rtol=2e-5, atol=2e-5)


PADDED = "<pads = [1, 1, 1, 1]>"
# why a gradient stays: (formulation, arguments of `trained`)
KEPT = {
    "groups": ("taps", {"x": (2, 4, 5, 5), "w": (4, 2, 3, 3), "attributes": "<group = 2>"}),
    "a product already": ("taps", {"x": (2, 4, 5, 5), "w": (4, 4, 1, 1)}),
    "float16, emulated": ("auto", {"x": (2, 4, 5, 5), "w": (4, 4, 3, 3), "dtype": "float16"}),
    "a product, by price": ("priced", {"x": (2, 64, 5, 5), "w": (64, 64, 1, 1)}),
    "many results, by price": (
        "priced",
        {"x": (32, 512, 7, 7), "w": (512, 512, 3, 3), "attributes": "<pads = [1, 1, 1, 1]>"},
    ),
    "groups, by price": ("priced", {"x": (32, 64, 56, 56), "w": (64, 1, 3, 3), "attributes": "<group = 64>"}),
    "an open batch, by price": ("priced", {"x": ("N", 64, 56, 56), "w": (64, 64, 3, 3)}),
    "asked for": ("convolution", {"x": (2, 4, 5, 5), "w": (4, 4, 3, 3)}),
    "no weight gradient": ("taps", {"x": (2, 4, 5, 5), "w": (4, 4, 3, 3), "wanted": "x"}),
}


@pytest.mark.parametrize(("formulation", "arguments"), KEPT.values(), ids=KEPT)
def test_what_stays(formulation, arguments):
    model = trained(**arguments)
    before = [node.op_type for node in model.graph]
    assert not WeightGradients(formulation)(model).modified
    assert [node.op_type for node in model.graph] == before


@pytest.mark.parametrize(("channels", "form"), [(3, 1), (32, 9)])
def test_windows_of_few_elements_are_one_product(channels, form):
    model = trained((2, channels, 6, 6), (4, channels, 3, 3))
    WeightGradients()(model)
    assert [node.op_type for node in model.graph].count("MatMul") == form


def test_an_executor_wants_a_known_formulation():
    with pytest.raises(OptionError, match=r"weight_gradients must be one of .*taps.*, got 'winograd'"):
        static.Executor(CPUPlace(), weight_gradients="winograd")


# name: (nodes, outputs that stay, edits)
TRANSPOSES = {
    "there and back": ("a = Transpose <perm = [1, 0, 2]> (x) y = Transpose <perm = [1, 0, 2]> (a) z = Exp (y)", 2),
    "the first is read": (
        """a = Transpose <perm = [2, 0, 1]> (x) y = Transpose <perm = [1, 2, 0]> (a) b = Exp (y) c = Abs (a)
        d = Transpose <perm = [1, 2, 0]> (c) z = Add (b, d)""",
        1,
    ),
    "another permutation": (
        "a = Transpose <perm = [2, 0, 1]> (x) y = Transpose <perm = [2, 0, 1]> (a) z = Exp (y)",
        0,
    ),
    "an output": ("a = Transpose <perm = [1, 0, 2]> (x) z = Transpose <perm = [1, 0, 2]> (a)", 0),
}


@pytest.mark.parametrize(("nodes", "count"), TRANSPOSES.values(), ids=TRANSPOSES)
def test_transposes_that_undo_each_other(run, nodes, count):
    model = ir.from_proto(parse(f"(float[2,3,4] x) => (float[a,b,c] z) {{ {nodes} }}"))
    propagate_types(model)
    feeds = {"x": array(2, 3, 4)}
    expected = run(model, feeds)
    assert CancelTransposes()(model).count == count
    np.testing.assert_array_equal(run(model, feeds)[0], expected[0])


PLAIN = {
    "mixed": "y = com.microsoft.HyperConnectionPostMix (x, g, p, s)",
    "a product of rows": "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, h)",
}
SHAPES = {"mixed": "3,1,50", "a product of rows": "3,1,1"}


@pytest.mark.parametrize("name", PLAIN)
def test_what_the_cpu_runs_in_place(run, name):
    text = (
        "(float[3,1,50] x, float[3,50] g, float[3,1,50] h, float[3,1] p, float[3,1,1] s) =>"
        f" (float[{SHAPES[name]}] y) {{ {PLAIN[name]} }}"
    )
    proto = parse(text, opset=21)
    proto.opset_import.add(domain="com.microsoft", version=1)
    model = ir.from_proto(proto)
    propagate_types(model)
    feeds = {"x": array(3, 1, 50), "g": array(3, 50), "h": array(3, 1, 50), "p": array(3, 1), "s": array(3, 1, 1)}
    expected = run(model, feeds)
    assert PlainForCpu()(model).count == 1
    verify(model, "writing for the CPU")
    assert not any(node.domain for node in model.graph)
    np.testing.assert_allclose(run(model, feeds)[0], expected[0], rtol=1e-6, atol=1e-6)


def test_several_streams_stay():
    inputs = "float[3,2,50] x, float[3,50] g, float[3,2] p, float[3,2,2] s"
    text = f"({inputs}) => (float[3,2,50] y) {{ y = com.microsoft.HyperConnectionPostMix (x, g, p, s) }}"
    proto = parse(text, opset=21)
    proto.opset_import.add(domain="com.microsoft", version=1)
    model = ir.from_proto(proto)
    propagate_types(model)
    assert not PlainForCpu()(model).modified
