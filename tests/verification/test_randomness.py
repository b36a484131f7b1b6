"""Outputs that differ from run to run: they are not judged, and named."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.verification import accuracy
from amp_transpiler.verification.randomness import differing, random_upstream
from tests.support import array, parse

W = array(4, 4, seed=1)
X = {"x": array(2, 4)}
INTERFACE = "(float[2,4] x) => (float[2,4] y, float[2,4] z)"
LIKE = "[noise] n = RandomNormalLike (x) z = MatMul (x, w) y = Add (z, n)"
# case: (nodes, why `y` is not judged; None if it is)
RANDOM = {
    "normal": (LIKE, "random: RandomNormalLike 'noise'"),
    "with a seed": (LIKE.replace("Like (x)", "Like <seed = 7.0> (x)"), None),
    "Bernoulli": (
        "p = Sigmoid (x) [noise] n = Bernoulli (p) z = MatMul (x, w) y = Add (z, n)",
        "random: Bernoulli 'noise'",
    ),
    "its shape alone": (
        "n = RandomNormalLike (x) z = MatMul (x, w) s = Shape (n) c = ConstantOfShape (s) y = Add (z, c)",
        None,
    ),
    "in a body": (
        """z = MatMul (x, w) y = If (yes) <then_branch = t () => (float[2,4] p) { [noise] p = RandomNormalLike (z) },
                                          else_branch = e () => (float[2,4] q) { q = Neg (z) }>""",
        "random: RandomNormalLike 'noise'",
    ),
}


def convert(nodes, given=True, **options):
    model = parse(f"{INTERFACE} {{ {nodes} }}", w=W, yes=np.array(True))
    try:
        return amp.transpile(model, inputs=X if given else None, **options, prefer="size")
    except amp.CheckFailed as error:
        return error.report


@pytest.mark.parametrize(("nodes", "why"), RANDOM.values(), ids=RANDOM)
@pytest.mark.parametrize("level", ["auto", "O2"])
def test_random_outputs_are_left_out_by_name(nodes, why, level):
    report = convert(nodes, level=level)
    assert report.verdict_word == ("compared" if level == "O2" else "plausible" if why else "verified")
    assert (f"; not judged: 'y' ({why})" in report.verdict) == (why is not None)
    assert report.repaired == ()


def test_where_all_outputs_are_random_only_the_structure_is_checked():
    nodes = "[noise] n = RandomUniformLike (x) y = Add (x, n) z = Sub (x, n)"
    report = convert(nodes)
    assert report.verdict.startswith("structure only: no output can be judged; not judged: 'y' (random: ")
    assert report.notes == ()


def test_a_tolerance_for_random_outputs_alone_cannot_be_checked():
    report = convert("[noise] n = RandomUniformLike (x) y = Add (x, n) z = Sub (x, n)", tolerance="1%")
    assert report.verdict.startswith("failed: the limit that was asked for could not be checked: no output can be")
    assert "random: RandomUniformLike 'noise'" in report.verdict
    assert "--inputs" not in report.verdict  # others would be no remedy


def test_an_inaccurate_output_beside_a_random_one_still_fails():
    report = convert(LIKE, level="O2", tolerance=1e-6)
    assert report.verdict.startswith("failed: output 'z' differs")


def test_a_random_output_that_is_no_longer_finite_fails():
    model = parse(
        "(float[2,4] x) => (float[2,4] y) { n = RandomNormalLike (x) b = Mul (x, big) y = Add (b, n) }",
        big=np.float32(60000.0),
    )
    with pytest.raises(amp.CheckFailed, match="'y' has 8 non-finite values"):
        amp.transpile(model, level="O2", inputs={"x": np.full((2, 4), 3.0, np.float32)})


def test_a_program_that_is_not_steady_is_noticed(monkeypatch):
    plain, runs = accuracy.named_outputs, []

    def named_outputs(session, sample):
        runs.append(1)
        outputs = plain(session, sample)
        return {**outputs, "y": outputs["y"] + np.float32(len(runs))}

    monkeypatch.setattr(accuracy, "named_outputs", named_outputs)
    report = convert("z = MatMul (x, w) y = Relu (z)")
    assert report.verdict_word == "plausible"
    assert report.verdict.endswith("not judged: 'y' (two runs in float32 differ)")


def test_only_the_first_sample_runs_twice(monkeypatch):
    plain, runs = accuracy.named_outputs, []

    def named_outputs(session, sample):
        runs.append(float(sample["x"][0, 0]))
        return plain(session, sample)

    monkeypatch.setattr(accuracy, "named_outputs", named_outputs)
    program = amp.load(parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=W))
    accuracy.make_reference(program, program, [{"x": np.full((2, 4), i, np.float32)} for i in range(3)])
    assert runs == [0.0, 1.0, 2.0, 0.0]


UPSTREAM = {
    "in a function": (
        "y = local.noisy (x)",
        '<domain: "local", opset_import: ["": 17]> noisy (a) => (b) { [inner] n = RandomNormalLike (a) b = Neg (n) }',
        ["RandomNormalLike"],
    ),
    "Dropout in training mode": ("[d] y = Dropout (x, half, yes)", "", ["Dropout"]),
    "Dropout": ("y = Dropout (x, half)", "", []),
    "beside the path": ("n = RandomNormalLike (x) m = Add (n, n) y = Relu (x)", "", []),
}


@pytest.mark.parametrize(("nodes", "function", "expected"), UPSTREAM.values(), ids=UPSTREAM)
def test_random_operators_above_an_output(nodes, function, expected):
    import onnx.parser

    text = f"""<ir_version: 10, opset_import: ["": 17, "local": 1]>
        net (float[2,4] x) => (float[2,4] y) <float half = {{0.5}}, bool yes = {{1}}> {{ {nodes} }} {function}"""
    model = amp.load(onnx.parser.parse_model(text)).model
    assert [node.op_type for group in random_upstream(model).values() for node in group] == expected


NAN = np.array([np.nan, 1.0])
PAIRS = {
    "equal": (np.ones(2), np.ones(2), False),
    "different": (np.ones(2), np.zeros(2), True),
    "NaN in both": (NAN, NAN.copy(), False),
    "another shape": (np.ones(2), np.ones(3), True),
    "another type": (np.ones(2), np.ones(2, np.float32), True),
    "texts": (np.array(["a"], object), np.array(["b"], object), True),
    "sequences": ([np.ones(2)], [np.ones(2)], False),
    "longer sequences": ([np.ones(2)], [np.ones(2)] * 2, True),
    "maps": ({"a": 1.0}, {"a": 2.0}, True),
    "nothing": (None, None, False),
    "something": (None, np.ones(1), True),
}


@pytest.mark.parametrize(("first", "second", "differs"), PAIRS.values(), ids=PAIRS)
def test_what_differs_between_runs(first, second, differs):
    assert differing({"y": first}, {"y": second}) == ({"y"} if differs else set())
