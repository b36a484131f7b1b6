"""SambaNova's presets and mixed operators, after "Compile with mixed precision (Beta)"."""

import pathlib

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import OptionError
from amp_transpiler.systems.sambanova.rules import parse_mixed_ops
from tests import support
from tests.support import array, parse

# The document's model: two products, each with its relu.
EXAMPLE = """(float[4,8] a, float[8,8] b, float[8,8] c) => (float[4,8] out) {
    [matmul_1] m1 = MatMul (a, b) [act_1] r1 = Relu (m1) [matmul_2] m2 = MatMul (r1, c) [act_2] out = Relu (m2)
}"""
FEEDS = {"a": array(4, 8), "b": array(8, 8, seed=1), "c": array(8, 8, seed=2)}

# The second one: matmul_2 written in bfloat16, and its relu with it, in a disabled region.
WITH_REGION = """(float[4,8] a, float[8,8] b, float[8,8] c) => (bfloat16[4,8] out) {
    [matmul_1] m1 = MatMul (a, b) [act_1] r1 = Relu (m1)
    [to_1] r1b = Cast <to = 16> (r1) [to_2] cb = Cast <to = 16> (c)
    [matmul_2] m2 = MatMul (r1b, cb) [act_2] out = Relu (m2)
}"""


def transpiled(model, **options):
    return amp.transpile(model, inputs=None, **options, prefer="size")


def types(program):
    """Node name -> (types of the float inputs, type of the output), casts left out."""
    return {
        node.name: ([value.dtype.name for value in node.inputs], node.outputs[0].dtype.name)
        for node in support.nodes(program)
        if node.op_type != "Cast"
    }


# ---- the document's example ----


def test_mp0_copies_the_file_byte_for_byte(tmp_path):
    source = tmp_path / "m.onnx"
    source.write_bytes(parse(EXAMPLE).SerializeToString() + b"")
    report = amp.transpile(source, tmp_path / "o.onnx", preset="mp0")
    assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()
    assert (report.casts, report.low_nodes) == (0, 0)
    assert {row.precision for row in report.decisions} == {"unchanged"}


def test_mp1_is_the_documents_picture():
    report = transpiled(parse(EXAMPLE), preset="mp1")
    program = report.program
    support.assert_valid(program)
    low, high = ["BFLOAT16", "BFLOAT16"], ["FLOAT"]
    assert types(program) == {
        "matmul_1": (low, "BFLOAT16"),
        "act_1": (high, "FLOAT"),
        "matmul_2": (low, "BFLOAT16"),
        "act_2": (high, "FLOAT"),
    }
    # Each product's two inputs down, its result up.
    assert sorted(to for _, _, to in support.casts(program)) == ["BFLOAT16"] * 4 + ["FLOAT"] * 2


def test_mp4_is_low_throughout():
    program = transpiled(parse(EXAMPLE), preset="mp4").program
    support.assert_valid(program)
    assert all(set(inputs) | {output} == {"BFLOAT16"} for inputs, output in types(program).values())
    down = [name for name, _, to in support.casts(program) if to == "BFLOAT16"]
    up = [name for name, _, to in support.casts(program) if to == "FLOAT"]
    assert (sorted(down), up) == (["a", "b", "c"], [support.nodes(program, "Relu")[1].outputs[0].name])


def test_a_disabled_region_stays_as_it_is_written():
    model = parse(WITH_REGION)
    for node in model.graph.node[2:]:
        node.metadata_props.add(key="amp_transpiler.region", value="disable_amp")
    report = transpiled(model, preset="mp1")
    program = report.program
    support.assert_valid(program)
    low = ["BFLOAT16", "BFLOAT16"]
    assert types(program) == {
        "matmul_1": (low, "BFLOAT16"),  # mixed: its result goes up to float32
        "act_1": (["FLOAT"], "FLOAT"),
        "matmul_2": (low, "BFLOAT16"),  # as the user wrote it: no cast behind it
        "act_2": (["BFLOAT16"], "BFLOAT16"),
    }
    assert sorted(support.casts(program)) == [
        ("a", "FLOAT", "BFLOAT16"),
        ("b", "FLOAT", "BFLOAT16"),
        ("c", "FLOAT", "BFLOAT16"),
        ("m1", "BFLOAT16", "FLOAT"),
        ("r1", "FLOAT", "BFLOAT16"),
    ]


@pytest.mark.parametrize("preset", ["mp1", "mp4", "default"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_presets_are_close_to_float32(preset, dtype):
    report = amp.transpile(parse(EXAMPLE), preset=preset, dtype=dtype, inputs=FEEDS)
    assert report.dtype == dtype
    expected = support.run(parse(EXAMPLE), FEEDS)
    support.assert_close(expected, support.run_emulated(report.program, FEEDS), support.LIMITS[dtype])


def test_presets_are_bfloat16_unless_told_otherwise():
    assert transpiled(parse(EXAMPLE), preset="mp1").dtype == "bfloat16"
    assert transpiled(parse(EXAMPLE), mixed_ops=["gemm"]).dtype == "bfloat16"
    assert transpiled(parse(EXAMPLE)).dtype == "float16"


# ---- the default preset ----

CONVERTED = """(float[4,8] a, float[8,8] b) => (float[4,8] out) {
    [first] m1 = MatMul (a, b) [before] r1 = Relu (m1) [float] f = Cast <to = 1> (r1)
    [behind] e = Exp (f) [last] out = Tanh (e)
}"""


def test_default_is_low_until_a_float_conversion():
    report = transpiled(parse(CONVERTED), preset="default")
    assert support.decisions(report) == {
        "first": "low",
        "before": "low",
        "float": "untouched",
        "behind": "high",
        "last": "high",
    }
    assert "conversion to float32" in support.reasons(report)["behind"]
    assert set(support.decisions(transpiled(parse(CONVERTED), preset="mp4")).values()) == {"low", "untouched"}


def test_a_mask_made_of_integers_is_no_float_conversion():
    graph = """(float[4,8] a, int64[4,8] m) => (float[4,8] out) {
        [mask] f = Cast <to = 1> (m) [add] s = Add (a, f) [last] out = Relu (s)
    }"""
    assert support.decisions(transpiled(parse(graph), preset="default"))["last"] == "low"


def test_a_conversion_is_followed_into_and_out_of_bodies():
    graph = """(float[2,4] x, int64 n, bool c) => (float[2,4] y, float[2,4] z) {
        [low] h = Relu (x)
        [float] f = Cast <to = 1> (h)
        [loop] l = Loop (n, c, f) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2) {
            [pass] k2 = Identity (k) [inside] a2 = Relu (a)
        }>
        [behind] y = Tanh (l)
        [beside] z = Tanh (h)
    }"""
    decisions = support.decisions(transpiled(parse(graph), preset="default"))
    assert (decisions["inside"], decisions["behind"], decisions["beside"]) == ("high", "high", "low")


# ---- mixed operators ----

SOFTMAX = """(float[4,8] a, float[8,8] b, float[8,4] c) => (float[4,4] out) {
    [gemm] m = MatMul (a, b) [soft] s = Softmax (m) [second] out = MatMul (s, c)
}"""


@pytest.mark.parametrize(
    ("mixed", "preset", "expected"),
    [
        ("gemm", None, {"gemm": ("BFLOAT16", "BFLOAT16"), "soft": ("FLOAT", "FLOAT"), "second": ("BFLOAT16",) * 2}),
        ("softmax", None, {"gemm": ("FLOAT", "FLOAT"), "soft": ("FLOAT", "FLOAT"), "second": ("FLOAT", "FLOAT")}),
        ("gemm,softmax", "mp0", {"gemm": ("BFLOAT16",) * 2, "soft": ("FLOAT",) * 2, "second": ("BFLOAT16",) * 2}),
        ("softmax", "mp4", {"gemm": ("BFLOAT16",) * 2, "soft": ("FLOAT",) * 2, "second": ("BFLOAT16",) * 2}),
        ("", "mp4", {"gemm": ("BFLOAT16",) * 2, "soft": ("BFLOAT16",) * 2, "second": ("BFLOAT16",) * 2}),
    ],
)
def test_mixed_operators_whatever_the_preset(mixed, preset, expected):
    report = transpiled(parse(SOFTMAX), preset=preset, mixed_ops=mixed)
    support.assert_valid(report.program)
    assert {name: (inputs[0], output) for name, (inputs, output) in types(report.program).items()} == expected


def test_a_mixed_softmax_is_stored_low():
    program = transpiled(parse(SOFTMAX), mixed_ops=["softmax"]).program
    # Rounded once, and back up for a reader in float32.
    assert [(source, to) for _, source, to in support.casts(program)] == [("FLOAT", "BFLOAT16"), ("BFLOAT16", "FLOAT")]
    both = transpiled(parse(SOFTMAX), mixed_ops=["gemm", "softmax"]).program
    assert ("s", "FLOAT", "BFLOAT16") in support.casts(both)
    assert not any(name.startswith("s__") for name, *_ in support.casts(both)), "the product reads it as it is stored"


def test_a_mixed_softmax_that_is_an_output_keeps_its_name_and_is_rounded():
    program = transpiled(parse("(float[4,8] x) => (float[4,8] y) { y = Softmax (x) }"), mixed_ops="softmax").program
    support.assert_valid(program)
    result = support.run_emulated(program, {"x": array(4, 8)})["y"]
    assert np.array_equal(result, result.astype(support.NUMPY["bfloat16"]).astype(np.float32))


# ---- nothing is changed ----


@pytest.mark.parametrize("options", [{"level": "O0"}, {"preset": "mp0"}, {"level": "O0", "policy": "torch"}], ids=str)
def test_nothing_is_changed_with_external_data_either(options, tmp_path):
    model = parse("(float[4,8] x) => (float[4,8] y) { y = MatMul (x, w) }", w=array(8, 8))
    source, folder = tmp_path / "m.onnx", tmp_path / "out"
    folder.mkdir()
    onnx.save(model, source, save_as_external_data=True, location="m.data", size_threshold=0)
    amp.transpile(source, folder / "m.onnx", **options, prefer="size")
    expected = {name: (tmp_path / name).read_bytes() for name in ("m.onnx", "m.data")}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


def test_a_model_in_memory_is_written_as_it_is(tmp_path):
    amp.transpile(parse(EXAMPLE), tmp_path / "o.onnx", preset="mp0")
    assert support.nodes(onnx.load(tmp_path / "o.onnx")).__len__() == 4
    assert not support.casts(onnx.load(tmp_path / "o.onnx"))


# ---- what has no meaning ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "mp2"}, ["mp2", "reserved", "mp0, mp1, mp4, default"]),
        ({"preset": "mp3"}, ["mp3", "reserved"]),
        ({"preset": "mp5"}, ["unknown preset", "mp5"]),
        ({"mixed_ops": ["conv"]}, ["conv", "gemm or softmax"]),
        ({"preset": "mp1", "level": "O2"}, ["level", "O2", "drop one"]),
        ({"preset": "mp1", "policy": "torch"}, ["policy", "torch", "drop one"]),
        ({"preset": "mp1", "use_promote": True}, ["use_promote"]),
        ({"preset": "mp0", "keep_io_types": False}, ["preset mp0", "changes nothing"]),
    ],
)
def test_contradictions_are_one_clear_error(options, words):
    with pytest.raises(OptionError) as caught:
        transpiled(parse(EXAMPLE), **options)
    assert all(word in str(caught.value) for word in words), caught.value


# ---- from the command ----


@pytest.mark.parametrize(
    ("arguments", "lowered"),
    [
        (["--preset", "mp1"], {"matmul_1", "matmul_2"}),
        (["--mixed-ops", "gemm"], {"matmul_1", "matmul_2"}),
        (["--preset", "mp4"], {"matmul_1", "matmul_2", "act_1", "act_2"}),
        (["--preset", "mp1", "--disable-amp", "matmul_2"], {"matmul_1"}),
    ],
)
def test_the_command_takes_presets(arguments, lowered, tmp_path):
    from amp_transpiler.cli.command import main

    source = tmp_path / "m.onnx"
    onnx.save(parse(EXAMPLE), source)
    assert main([str(source), "-q", *arguments]) == 0
    written = onnx.load(tmp_path / "m.bf16.onnx")  # bfloat16 unless told otherwise
    assert {name for name, (inputs, _) in types(written).items() if "BFLOAT16" in inputs} == lowered


def test_the_command_copies(tmp_path):
    from amp_transpiler.cli.command import main

    source = tmp_path / "m.onnx"
    onnx.save(parse(EXAMPLE), source)
    for arguments in (["--preset", "mp0"], ["--level", "O0"]):
        out = tmp_path / "o.onnx"
        assert main([str(source), "-q", "-o", str(out), *arguments]) == 0
        assert pathlib.Path(out).read_bytes() == source.read_bytes()
        out.unlink()


@pytest.mark.parametrize(
    "text", ["gemm,softmax", "gemm softmax", " softmax ,  gemm ", ["gemm", "softmax"], "GEMM,softmax,"]
)
def test_mixed_operators_are_separated_by_commas_or_spaces(text):
    """The document writes `--enable-mixed-precision-ops gemm softmax`."""
    assert parse_mixed_ops(text) == {"gemm", "softmax"}
