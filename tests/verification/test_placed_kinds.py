"""Boxes, embeddings and rare classes: which outputs are, and what is measured of them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from scipy.special import softmax
from sklearn.neighbors import NearestNeighbors

import amp_transpiler as amp
from amp_transpiler.verification.metrics import Agreement
from amp_transpiler.verification.output_kind import OutputKind
from amp_transpiler.verification.placed_kinds import read_outputs
from tests.support import array, parse

random = np.random.default_rng(0)
CORNERS = np.sort(random.uniform(0, 300, (1, 20, 2, 2)), axis=2).reshape(1, 20, 4).astype(np.float32)
CENTRES = np.concatenate([random.uniform(0, 300, (1, 20, 2)), random.uniform(1, 40, (1, 20, 2))], 2).astype(np.float32)
DELTAS = random.standard_normal((1, 20, 4)).astype(np.float32)
NMS = "NonMaxSuppression"
HEAD = "c = Sigmoid (s) {output} = Concat <axis = 1> (b, c)"

# name of the output: (body, what it is on corners, on centres and sizes, on offsets)
IN_GRAPHS = {
    "by their name": ("boxes", "boxes = Mul (x, one)", "boxes", "numbers", "numbers"),
    "in a longer name": ("pred_bboxes_0", "pred_bboxes_0 = Mul (x, one)", "boxes", "numbers", "numbers"),
    "camel case": ("detectionBoxes", "detectionBoxes = Mul (x, one)", "boxes", "numbers", "numbers"),
    "centres behind a Sigmoid": ("pred_boxes", "pred_boxes = Sigmoid (x)", "boxes", "boxes", "numbers"),
    "read by suppression": ("y", f"y = Mul (x, one) n = {NMS} (y, scores)", "boxes", "numbers", "numbers"),
    "read as centres": (
        "y",
        f"y = Mul (x, one) n = {NMS} <center_point_box = 1> (y, scores)",
        "boxes",
        "boxes",
        "numbers",
    ),
    "recast before": ("y", f"h = Mul (x, one) y = Identity (h) n = {NMS} (h, scores)", "boxes", "numbers", "numbers"),
    "offsets": ("box_deltas", "box_deltas = Mul (x, one)", "numbers", "numbers", "numbers"),
    "scores of boxes": ("box_scores", "box_scores = Mul (x, one)", "numbers", "numbers", "numbers"),
    "any four columns": ("y", "y = Mul (x, one)", "numbers", "numbers", "numbers"),
    "a box office": ("inbox", "inbox = Mul (x, one)", "numbers", "numbers", "numbers"),
}


def reading(kinds, name, data):
    agreement = Agreement(kinds.get(name))
    agreement.add(data, data)
    return "boxes" if agreement.figures()["iou"] == 1.0 else "numbers"


@pytest.mark.parametrize("case", IN_GRAPHS)
def test_boxes_are_recognised_in_graphs_and_confirmed_by_data(case):
    name, body, *expected = IN_GRAPHS[case]
    more = ", int64[k, 3] n" if NMS in body else ""
    text = f"(float[1, 20, 4] x, float[1, 1, 20] scores) => (float[1, 20, 4] {name}{more}) {{ {body} }}"
    kinds = read_outputs(ir.from_proto(parse(text, opset=17, one=np.float32(1))), {})
    assert [reading(kinds, name, data) for data in (CORNERS, CENTRES, DELTAS)] == expected


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("coordinates", "last", "is_head"), [(4, "Sigmoid", True), (5, "Sigmoid", False), (4, "Relu", False)]
)
def test_the_head_of_a_detector(coordinates, last, is_head, turned):
    end = (
        "h = Concat <axis = 1> (b, c) y = Transpose <perm = [0, 2, 1]> (h)"
        if turned
        else "y = Concat <axis = 1> (b, c)"
    )
    shape = "1, 20, 10" if turned else "1, 10, 20"
    text = f"(float[1, {coordinates}, 20] b, float[1, 6, 20] s) => (float[{shape}] y) {{ c = {last} (s) {end} }}"
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=17)))
    kind = read_outputs(model, {}).get("y")
    assert (kind is not None and kind.reading == "boxes" and kind.axis == (2 if turned else 1)) is is_head


def overlap(one, other):
    """Intersection over union of two boxes, written as one would by hand."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(width, 0) * max(height, 0)
    return both / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - both)


def iou(kind, reference, result):
    agreement = Agreement(kind)
    agreement.add(reference, result)
    return agreement.figures()["iou"]


KIND = OutputKind("boxes", classes=4, centred=True)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0, 100.0])
def test_boxes_over_boxes(noise):
    moved = CORNERS + (noise * random.standard_normal(CORNERS.shape)).astype(np.float32)
    moved = np.concatenate([np.minimum(moved[..., :2], moved[..., 2:]), np.maximum(moved[..., :2], moved[..., 2:])], 2)
    expected = np.mean([overlap(a, b) for a, b in zip(CORNERS[0], moved[0], strict=True)])
    assert iou(KIND, CORNERS, moved) == pytest.approx(expected)

    def centred(boxes):
        return np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], 2)

    def swapped(boxes):
        return np.moveaxis(np.concatenate([centred(boxes), np.ones((1, 20, 3))], 2), 2, 1)

    assert iou(KIND, centred(CORNERS), centred(moved)) == pytest.approx(expected, rel=1e-4)
    head = OutputKind("boxes", axis=1, centred=True)
    assert iou(head, swapped(CORNERS), swapped(moved)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("reference", "result", "expected"),
    [
        ([[0, 0, 2, 2]], [[5, 5, 6, 6]], 0.0),
        ([[0, 0, 2, 2]], [[np.nan, 0, 2, 2]], 0.0),
        ([[0, 0, 2, 2]], [[2, 2, 0, 0]], 0.0),
        ([[0, 0, 2, 2], [0, 0, 0, 0]], [[0, 0, 2, 2], [0, 0, 9, 9]], 1.0),  # padding has no area
        ([[0, 0, 0, 0]], [[0, 0, 0, 0]], None),
        ([[np.nan, 0, 1, 1], [0, 0, 2, 2]], [[0, 0, 1, 1], [0, 0, 2, 1]], 0.5),
        ([[0, 0, 2, 2]], [[0, 0, np.inf, np.inf]], 0.0),
    ],
)
def test_boxes_at_the_edge(reference, result, expected):
    assert iou(OutputKind("boxes", classes=4), np.float32(reference), np.float32(result)) == expected


UNIT = random.standard_normal((60, 32))
UNIT = (UNIT / np.linalg.norm(UNIT, axis=1, keepdims=True)).astype(np.float32)
# rows -> whether they are embeddings without a word from the graph
ROWS = {
    "of length one": (UNIT, True),
    "of length one, float16": (UNIT.astype(np.float16), True),
    "of length two": (2 * UNIT, False),
    "few columns": (UNIT[:, :8] / np.linalg.norm(UNIT[:, :8], axis=1, keepdims=True), False),
    "one row is longer": (np.concatenate([UNIT, 3 * UNIT[:1]]), False),
    "one-hot": (np.eye(32, dtype=np.float32), False),
    "three axes": (UNIT[None], False),
    "texts": (np.full((60, 32), "word", object), False),
    "integers": (np.eye(60, 32, dtype=np.int64) * -1, False),
    "normalised otherwise": (UNIT * np.sqrt(32), False),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_of_length_one_are_embeddings(case):
    rows, expected = ROWS[case]
    agreement = Agreement(OutputKind("numbers"))
    agreement.add(rows, rows)
    assert (agreement.figures()["neighbours"] == 1.0) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embedding", True),
        ("sentence_embedding", True),
        ("imageEmbeds", True),
        ("text_embeddings", True),
        ("position_embeddings", False),
        ("token_embeddings", False),
        ("features", False),
        ("embedded", False),
    ],
)
def test_embeddings_by_their_name(name, expected):
    model = ir.from_proto(parse(f"(float[N, 32] x) => (float[N, 32] {name}) {{ {name} = Tanh (x) }}"))
    kind = read_outputs(model, {}).get(name)
    assert (kind is not None and kind.reading == "embeddings") is expected


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3, 2.0])
def test_neighbours_are_those_of_scikit_learn(noise):
    moved = UNIT + noise * random.standard_normal(UNIT.shape).astype(np.float32)

    def nearest(rows):
        return NearestNeighbors(n_neighbors=2, metric="cosine").fit(rows).kneighbors(rows)[1][:, 1]

    agreement = Agreement(OutputKind("embeddings"))
    for part in range(3):  # the rows of all samples together
        agreement.add(UNIT[20 * part : 20 * part + 20], moved[20 * part : 20 * part + 20])
    assert agreement.figures()["neighbours"] == pytest.approx(np.mean(nearest(UNIT) == nearest(moved)))


@pytest.mark.parametrize(("rows", "has"), [(3, False), (4, True)])
def test_few_rows_have_no_neighbours(rows, has):
    agreement = Agreement(OutputKind("embeddings"))
    agreement.add(UNIT[:rows], UNIT[:rows])
    assert (agreement.figures()["neighbours"] is not None) is has


LOGITS = random.standard_normal((50, 6)) + np.array([0, 0, 0, -5, -12, -40])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", [OutputKind("scores"), OutputKind("class map", axis=1)])
def test_a_rare_class_is_told(kind, dtype):
    reference = softmax(LOGITS, axis=1)
    result = reference.copy()
    result[:, 4] *= 1.5  # of 6e-6: nothing of the whole
    shape = (50, 6) if kind.reading == "scores" else (2, 6, 5, 5)

    def placed(rows):
        return rows if kind.reading == "scores" else np.moveaxis(rows.reshape(2, 5, 5, 6), 3, 1)

    agreement = Agreement(kind)
    agreement.add(placed(reference).astype(np.float32), placed(result).astype(dtype))
    assert placed(reference).shape == shape
    assert agreement.figures()["rare"] == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    "rows",
    [
        LOGITS,  # no probabilities
        -np.abs(LOGITS),
        np.log(softmax(LOGITS, axis=1)),
        1 / (1 + np.exp(-LOGITS)),  # each of its own
        softmax(LOGITS, axis=0),
        softmax(LOGITS, axis=1) * 3,
    ],
)
def test_scores_that_are_no_probabilities_have_no_rare_class(rows):
    agreement = Agreement(OutputKind("scores"))
    agreement.add(rows.astype(np.float32), rows.astype(np.float32))
    assert agreement.figures()["rare"] is None


def test_the_measures_are_in_the_report():
    text = """(float[N, 64] x) => (float[N, 10] p, float[N, 32] embedding) {
        h = MatMul (x, w) b = Add (h, rare) p = Softmax (b) e = MatMul (x, v) embedding = Tanh (e)
    }"""
    rare = np.float32([0, 0, 0, -17, 0, 0, 0, 0, 0, 0])
    source = parse(text, opset=17, w=array(64, 10, scale=0.125), v=array(64, 32, seed=2), rare=rare)
    report = amp.transpile(source, inputs={"x": array(200, 64, seed=3)}, level="O2", cache=False)
    p, embedding = report.outputs["p"], report.outputs["embedding"]
    assert p.relative < 0.01 < p.rare
    assert 0.9 < embedding.neighbours <= 1.0
    assert (p.neighbours, embedding.rare) == (None, None)
