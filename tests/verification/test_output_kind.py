"""The meaning of an output's numbers, by the operators above it, its shape and its element type."""

import re

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.report.as_json import report_as_dict
from amp_transpiler.verification import output_kind
from amp_transpiler.verification.output_kind import NUMBERS, OutputKind, output_kinds, settled
from tests.support import array, parse

W, BIAS = array(8, 6), array(6)
IMAGE = (2, 3, 16, 16)
CONVOLUTION = "y = Conv (i, k)"


NAMED = "class_mask"  # says all that a name can say


def read(body, shape, dtype=np.float32, *, feeds=(), opset=18, name=NAMED, **weights):
    """Return how an output of this name and shape is read that `body` computes as y from x (rows) and i (image)."""
    body = re.sub(r"\by =", f"{name} =", body)
    constants = {"w": W, "b": BIAS, "two": np.float32([2]), "minus": np.float32(-2), "k": array(6, 3, 1, 1), **weights}
    used = {key: value for key, value in constants.items() if re.search(rf"[(,]\s*{key}\s*[,)]", body)}
    graph = f"(float[N, 8] x, float[2, 3, 16, 16] i, float[N, 6] z) => ({name}) {{ {body} }}"
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(graph, opset=opset, **used)))
    inputs = {"x": np.zeros((2, 8)), "i": np.zeros(IMAGE)} | dict(feeds)
    kind = settled(output_kinds(model, inputs).get(name), np.zeros(shape, dtype))
    return kind.reading, kind.axis if kind.reading in ("scores", "class map") else None


LOGITS = "h = MatMul (x, w)"
# body: (shape of y, reading, axis of the classes)
FLOATS = {
    # products
    LOGITS.replace("h", "y"): ((2, 6), "scores", 1),
    "y = Gemm (x, w, b)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Add (h, b)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Add (b, h)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Sub (h, b)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Sub (b, h)": ((2, 6), "numbers", None),
    f"{LOGITS} y = Mul (h, two)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Mul (two, h)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Div (h, two)": ((2, 6), "scores", 1),
    f"{LOGITS} y = Mul (h, minus)": ((2, 6), "numbers", None),
    f"{LOGITS} y = Mul (h, b)": ((2, 6), "numbers", None),
    f"{LOGITS} y = Add (h, z)": ((2, 6), "numbers", None),
    f"{LOGITS} s = ReduceSum (h) y = Div (h, s)": ((2, 6), "numbers", None),
    f"{LOGITS} e = Exp (h) s = ReduceSum (e) y = Div (e, s)": ((2, 6), "scores", 1),
    "v = Transpose (w2) y = MatMul (x, v)": ((2, 6), "scores", 1),
    "t = Transpose (z) y = MatMul (t, x)": ((6, 8), "numbers", None),  # of two values
    f"{LOGITS} y = Tanh (h)": ((2, 6), "numbers", None),
    f"{LOGITS} y = Cast <to = 10> (h)": ((2, 6), "scores", 1),
    # rearranged
    f"{LOGITS} y = Transpose (h)": ((6, 2), "scores", 0),
    f"{LOGITS} y = Transpose <perm = [0, 1]> (h)": ((2, 6), "scores", 1),
    f"{LOGITS} o = Constant <value_ints = [2]> () y = Unsqueeze (h, o)": ((2, 6, 1), "scores", 1),
    f"{LOGITS} o = Constant <value_ints = [0]> () y = Unsqueeze (h, o)": ((1, 2, 6), "scores", 2),
    f"{LOGITS} o = Constant <value_ints = [1, -1, 6]> () y = Reshape (h, o)": ((1, 2, 6), "scores", 2),
    f"{LOGITS} o = Constant <value_ints = [-1, 3, 2]> () y = Reshape (h, o)": ((2, 3, 2), "numbers", None),
    f"{LOGITS} y = Flatten <axis = 0> (h)": ((1, 12), "numbers", None),
    f"{LOGITS} n = Shape (z) y = Reshape (h, n)": ((2, 6), "scores", 1),
    f"{LOGITS} n = Shape (h) r = Shape (n) m = Expand (r, r) y = Reshape (h, m)": ((2, 5), "numbers", None),
    # Softmax
    f"{LOGITS} y = Softmax (h)": ((2, 6), "scores", 1),
    f"{LOGITS} y = LogSoftmax <axis = 0> (h)": ((2, 6), "scores", 0),
    "y = Softmax <axis = 1> (i)": (IMAGE, "class map", 1),
    "y = Softmax <axis = -3> (i)": (IMAGE, "class map", 1),
    "y = Softmax (i)": (IMAGE, "scores", 3),
    "c = Conv (i, k) t = Transpose <perm = [0, 2, 3, 1]> (c) y = Softmax (t)": ((2, 16, 16, 6), "class map", 3),
    "c = Conv (i, k) t = Transpose <perm = [0, 2, 3, 1]> (c) y = Softmax <axis = 2> (t)": (
        (2, 16, 16, 6),
        "scores",
        2,
    ),
    # convolutions
    CONVOLUTION: ((2, 6, 16, 16), "class map", 1),
    "c = Conv (i, k) y = Transpose <perm = [0, 2, 3, 1]> (c)": ((2, 16, 16, 6), "class map", 3),
    "g = GlobalAveragePool (i) y = Conv (g, k)": ((2, 6, 1, 1), "scores", 1),
    "g = GlobalAveragePool (i) c = Conv (g, k) y = Flatten (c)": ((2, 6), "scores", 1),
    "c = Conv (i, k) g = GlobalAveragePool (c) y = Flatten (g)": ((2, 6), "numbers", None),
    # masks and others
    "y = Sigmoid (x)": ((2, 8), "mask", None),
    "g = Greater (x, x) y = Cast <to = 1> (g)": ((2, 8), "mask", None),
    "y = Relu (x)": ((2, 8), "numbers", None),
    "y = Identity (x)": ((2, 8), "numbers", None),
    "y = ReduceMean <keepdims = 1> (x)": ((1, 1), "numbers", None),
}


@pytest.mark.parametrize("body", FLOATS)
def test_the_operators_above_an_output_say_how_to_read_it(body):
    shape, *expected = FLOATS[body]
    assert read(body, shape, w2=array(6, 8)) == tuple(expected)


# Fewest classes: of a product five, of a Softmax two.
@pytest.mark.parametrize(
    ("body", "classes", "reading"),
    [
        ("y = MatMul (x, v)", 4, "numbers"),
        ("y = MatMul (x, v)", 5, "scores"),
        ("h = MatMul (x, v) y = Softmax (h)", 1, "numbers"),
        ("h = MatMul (x, v) y = Softmax (h)", 2, "scores"),
        ("g = GlobalAveragePool (i) y = Conv (g, c)", 4, "numbers"),
        ("g = GlobalAveragePool (i) y = Conv (g, c)", 5, "scores"),
    ],
)
def test_a_few_columns_are_coordinates(body, classes, reading):
    weights = {"v": array(8, classes), "c": array(classes, 3, 1, 1)}
    shape = (2, classes, 1, 1) if "Conv" in body else (2, classes)
    assert read(body, shape, **weights)[0] == reading


# Shape of the image, of the output of a Conv -> whether that is a map of classes.
MAPS = {
    "as fine as the image": ((2, 3, 16, 16), (2, 6, 16, 16), True),
    "two classes, as fine": ((2, 3, 16, 16), (2, 2, 16, 16), True),
    "two classes, coarser": ((2, 3, 16, 16), (2, 2, 8, 8), False),
    "one class": ((2, 3, 16, 16), (2, 1, 16, 16), False),
    "four times as coarse": ((2, 3, 16, 16), (2, 6, 4, 4), True),
    "coarser still: features": ((2, 3, 16, 16), (2, 6, 3, 3), False),
    "coarser in one direction": ((2, 3, 16, 16), (2, 6, 16, 3), False),
    "finer: an image made larger": ((2, 3, 16, 16), (2, 6, 32, 32), False),
    "an image from an image": ((2, 6, 16, 16), (2, 6, 16, 16), False),
    "channels last": ((2, 16, 12, 3), (2, 6, 16, 12), True),
    "channels last, as many classes as columns": ((2, 16, 12, 3), (2, 12, 16, 12), True),
    "channels last, an image from an image": ((2, 16, 12, 3), (2, 3, 16, 12), False),
    "a volume": ((1, 1, 8, 8, 8), (1, 6, 8, 8, 8), True),
    "a map of a volume": ((1, 1, 8, 8, 8), (1, 6, 8, 8), False),
    "no image": ((2, 8), (2, 6, 16, 16), False),
    "a sound": ((1, 3, 90), (1, 6, 90), False),
}


@pytest.mark.parametrize("case", MAPS)
def test_convolutions_make_maps_of_classes_for_an_image(case):
    image, shape, is_map = MAPS[case]
    expected = ("class map", 1) if is_map else ("numbers", None)
    weights = {"k": array(shape[1], 3, 1, 1)}
    assert read(CONVOLUTION, shape, feeds={"i": np.zeros(image)}, **weights) == expected


INTEGERS = {
    "y = ArgMax <axis = 1, keepdims = 0> (i)": ((2, 16, 16), "label map"),
    "a = ArgMax <axis = 1> (i) y = Cast <to = 6> (a)": ((2, 1, 16, 16), "label map"),
    "y = ArgMin <axis = 1> (i)": ((1, 1, 16, 16), "label map"),
    "y = ArgMax <axis = 1> (x)": ((8, 1), "numbers"),
    "t = Unsqueeze (x, o) y = ArgMax <axis = 2, keepdims = 0> (t)": ((2, 8), "numbers"),  # a label for each word
    "t = Unsqueeze (x, o) y = ArgMax <axis = 0, keepdims = 0> (t)": ((2, 8), "label map"),  # one image
    "g = Greater (i, i) y = Cast <to = 7> (g)": (IMAGE, "mask"),
    "y = Cast <to = 7> (i)": ((1, 16, 16), "numbers"),
    "q = Cast <to = 7> (i) y = Neg (q)": ((1, 1, 16, 16), "numbers"),
    "r = Cast <to = 7> (i) y = Neg (r)": ((16, 16, 3), "numbers"),  # a picture
    "s = Cast <to = 7> (i) y = Neg (s)": ((2, 2, 16, 16), "numbers"),
    "y = Shape (i)": ((4,), "numbers"),
    "y = NonZero (i)": ((2, 8, 8), "numbers"),
    "h = MatMul (x, w) y = Cast <to = 7> (h)": ((2, 6), "numbers"),
}


@pytest.mark.parametrize("body", INTEGERS)
def test_integers_are_labels_masks_or_numbers(body):
    shape, reading = INTEGERS[body]
    assert read(body, shape, np.int64, o=np.int64([2]))[0] == reading


PLAIN = "h = MatMul (x, w)"
PIXELS = (2, 1, 16, 16)
# name of the output, body, shape: reading. What makes numbers of any meaning is told by a name, or by what ranks them.
SAID = {
    ("y", "y = MatMul (x, w)", (2, 6)): "numbers",
    ("output", "y = Gemm (x, w, b)", (2, 6)): "numbers",
    ("embedding", "y = Gemm (x, w, b)", (2, 6)): "numbers",
    ("last_hidden_state", "y = MatMul (x, w)", (2, 6)): "numbers",
    ("class_embedding", "y = MatMul (x, w)", (2, 6)): "numbers",
    ("class_logits", "y = MatMul (x, w)", (2, 6)): "scores",
    ("predLogits", "y = MatMul (x, w)", (2, 6)): "scores",
    ("box_scores", "y = MatMul (x, w)", (2, 6)): "numbers",
    ("y", "y = MatMul (x, w) p = Softmax (y)", (2, 6)): "scores",
    ("y", "y = MatMul (x, w) p = ArgMax <axis = 1> (y)", (2, 6)): "scores",
    ("y", "y = MatMul (x, w) p = ArgMax <axis = 0> (y)", (2, 6)): "numbers",
    ("y", f"{PLAIN} y = Add (h, b) p = Softmax (h)", (2, 6)): "scores",
    ("y", "y = MatMul (x, w) p = Softmax (y) v = MatMul (p, z)", (2, 6)): "numbers",  # an attention's
    ("y", "h = MatMul (x, w) y = Softmax (h)", (2, 6)): "scores",
    ("y", "h = MatMul (x, w) y = Softmax (h) v = MatMul (y, z)", (2, 6)): "numbers",
    ("y", "h = MatMul (x, w) y = Softmax (h) d = Dropout (y) v = MatMul (d, z)", (2, 6)): "numbers",
    ("y", CONVOLUTION, (2, 6, 16, 16)): "numbers",
    ("flow", CONVOLUTION, (2, 2, 16, 16)): "numbers",
    ("features", CONVOLUTION, (2, 6, 4, 4)): "numbers",
    ("segmentation", CONVOLUTION, (2, 6, 16, 16)): "class map",
    ("y", f"{CONVOLUTION} p = ArgMax <axis = 1> (y)", (2, 6, 16, 16)): "class map",
    ("y", "y = Sigmoid (x)", (2, 8)): "numbers",
    ("gate", "y = Sigmoid (x)", (2, 8)): "numbers",
    ("probability", "y = Sigmoid (x)", (2, 8)): "numbers",
    ("disparity", "y = Sigmoid (i)", PIXELS): "numbers",
    ("image", "y = HardSigmoid (i)", IMAGE): "numbers",
    ("mask", "y = Sigmoid (i)", PIXELS): "mask",
    ("pred_masks", "y = Sigmoid (i)", PIXELS): "mask",
    ("anything", "g = Greater (x, x) y = Cast <to = 1> (g)", (2, 8)): "mask",
}


@pytest.mark.parametrize("case", SAID, ids=lambda case: f"{case[0]}: {case[1]}")
def test_a_name_or_a_ranking_tells_what_an_operator_alone_does_not(case):
    name, body, shape = case
    weights = {"k": array(shape[1], 3, 1, 1)} if "Conv" in body else {}
    assert read(body, shape, name=name, **weights)[0] == SAID[case]


def test_a_mask_of_a_sound_is_a_factor():
    model = ir.from_proto(parse("(float[1, 9, 4] x) => (float[1, 9, 4] mask) { mask = Sigmoid (x) }"))
    assert output_kinds(model, {"x": np.zeros((1, 9, 4), np.float32)})["mask"].reading == "numbers"


@pytest.mark.parametrize(
    ("opset", "attributes", "axis", "joined"),
    [(12, "", 1, True), (12, "<axis = 2>", 2, True), (13, "", 3, False), (13, "<axis = 2>", 2, False)],
)
def test_softmax_before_opset_13_joins_axes(opset, attributes, axis, joined):
    model = parse(f"(float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {{ y = Softmax {attributes} (x) }}", opset=opset)
    kind = settled(output_kinds(ir.from_proto(model), {})["y"], np.zeros((2, 3, 4, 5), np.float32))
    assert (kind.reading, kind.axis, kind.joined) == ("scores", axis, joined)


@pytest.mark.parametrize(("sizes", "reading"), [((2, 6), "scores"), ((1, 2, 6), "scores"), ((3, 4), "numbers")])
def test_joined_classes_are_kept_by_a_reshape_or_are_lost(sizes, reading):
    body = f"s = Softmax (z) o = Constant <value_ints = [{', '.join(map(str, sizes))}]> () y = Reshape (s, o)"
    assert read(body, sizes, opset=12)[0] == reading


@pytest.mark.parametrize(
    ("shape", "reading"),
    [((2, 6, 5), "scores"), ((2, 6, 5, 5), "class map"), ((2, 6, 5, 5, 5), "class map"), ((2, 6, 1, 1), "scores")],
)
def test_softmax_along_the_second_axis_is_a_map_where_pixels_follow(shape, reading):
    sizes = ", ".join(map(str, shape))
    model = parse(f"(float[{sizes}] x) => (float[{sizes}] y) {{ y = Softmax <axis = 1> (x) }}")
    kind = settled(output_kinds(ir.from_proto(model), {})["y"], np.zeros(shape, np.float32))
    assert (kind.reading, kind.axis) == (reading, 1)


@pytest.mark.parametrize("way", ["Identity", "Cast <to = 1>", "Transpose <perm = [0, 1]>"])
def test_weights_may_be_recast_and_rearranged_before_a_product(way):
    known = parse(f"(float[2, 8] x) => (float[2, 6] logits) {{ v = {way} (w) logits = MatMul (x, v) }}", w=W)
    assert output_kinds(ir.from_proto(known), {})["logits"].classes == 6
    computed = parse(f"(float[2, 8] x, float[8, 6] w) => (float[2, 6] y) {{ v = {way} (w) y = MatMul (x, v) }}")
    assert output_kinds(ir.from_proto(computed), {}) == {}


TYPES = [
    (np.float32, "mask"),
    (np.float16, "mask"),
    (ml_dtypes.bfloat16, "mask"),
    (np.int64, "mask"),
    (np.bool_, "mask"),
    (np.complex64, "numbers"),
    (object, "numbers"),
]


@pytest.mark.parametrize(("dtype", "reading"), TYPES, ids=[str(dtype) for dtype, _ in TYPES])
def test_what_is_no_number_is_not_read(dtype, reading):
    assert settled(OutputKind("mask"), np.zeros(3, dtype)).reading == reading


def test_truth_values_are_a_mask_whatever_the_graph_says():
    assert settled(NUMBERS, np.zeros((2, 3), bool)).reading == "mask"


@pytest.mark.parametrize(("shape", "axis"), [((2, 6), 2), ((2, 6), -3), ((), -1)])
def test_an_axis_that_the_array_lacks_makes_it_numbers(shape, axis):
    assert settled(OutputKind("scores", axis=axis), np.zeros(shape, np.float32)) is NUMBERS


def test_every_operator_has_one_rule():
    names = [name for rule in output_kind._RULES for name in rule.operators.split()]
    assert len(names) == len(set(names))
    assert not set(names) & set(output_kind._PASSED)
    assert {name for name in names if not onnx.defs.has(name)} == set()


def test_a_conversion_reads_its_outputs_by_the_source_s_graph():
    """Casts, folded constants and fused nodes of the converted program do not hide where an output comes from."""
    graph = """(float[N, 3, 8, 8] image) => (float[N, 6] logits, float[N, 6, 8, 8] pixels, float[N, 1, 8, 8] mask,
        int64[N, 8, 8] labels, float[N, 3, 8, 8] features, bool[N, 6] best)
    {
        pixels = Conv (image, k)
        labels = ArgMax <axis = 1, keepdims = 0> (pixels)
        c = Conv (image, k1)
        mask = Sigmoid (c)
        features = Relu (image)
        g = GlobalAveragePool (pixels)
        f = Flatten (g)
        h = MatMul (f, w)
        logits = Add (b, h)
        best = Greater (logits, b)
    }"""
    model = parse(graph, k=array(6, 3, 1, 1), k1=array(1, 3, 1, 1), w=array(6, 6), b=array(6))
    samples = [{"image": array(1, 3, 8, 8, seed=seed)} for seed in range(3)]
    report = amp.transpile(model, level="O2", inputs=samples)
    assert report.low_nodes > 4
    kinds = {
        name: tuple(key for key in ("top1", "top5", "iou") if getattr(row, key) is not None)
        for name, row in report.outputs.items()
    }
    assert kinds == {
        "logits": ("top1", "top5"),
        "pixels": ("top1", "iou"),
        "mask": ("iou",),
        "labels": ("iou",),
        "features": (),
        "best": ("iou",),
    }
    rows = report_as_dict(report)["outputs"]
    assert {row["samples"] for row in rows.values()} == {3}
    assert rows["logits"]["top1"] == 1.0
    assert 0.9 < rows["pixels"]["iou"] <= 1.0


def test_inputs_of_other_kinds_have_no_shape():
    """A sequence of sequences, or of arrays of several lengths, is no array."""
    sequence = [np.ones(2, np.float32), np.ones(3, np.float32)]
    model = parse("(float[1,3,8,8] x, seq(float[n]) s) => (float[1,3,8,8] y) { y = Neg (x) }")
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32), "s": sequence}
    assert amp.transpile(model, level="O2", inputs=feeds).verdict_word == "compared"
