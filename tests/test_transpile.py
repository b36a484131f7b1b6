"""The whole way: files in and out, opsets, levels, order, what a failed check leaves behind."""

import json
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import CheckFailed, InputError, ModelError, OptionError, OutputError
from amp_transpiler.files import saving
from tests import support
from tests.support import array, chain, parse

W = array(4, 4, seed=1, scale=0.5)
X = {"x": array(2, 4)}
NETWORK = """(float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) {
    [first] h = MatMul (x, w) [relu] r = Relu (h) [exp] e = Exp (r)
    [branch] y = If (c) <
        then_branch = t () => (float[2,4] p) { [inner] p = MatMul (r, v) },
        else_branch = f () => (float[2,4] q) { [other] q = Sub (r, e) }
    >
    [last] z = MatMul (e, v)
}"""


def network():
    return parse(NETWORK, w=W, v=array(4, 4, seed=2))


FEEDS = {**X, "c": np.array(True)}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    onnx.save(network(), path)
    return path


# ---- files ----


def test_a_file_becomes_a_file_and_the_source_is_not_touched(source, tmp_path):
    before = support.folder_hash(source.parent)
    report = amp.transpile(source, tmp_path / "out.onnx", level="O2", inputs=FEEDS)
    assert support.folder_hash(source.parent) == before
    written = onnx.load(tmp_path / "out.onnx")
    support.assert_valid(written)
    support.assert_close(support.run(network(), FEEDS), support.run_emulated(written, FEEDS), 0.02)
    assert report.destination == str(tmp_path / "out.onnx")
    assert report.file_bytes == (source.stat().st_size, (tmp_path / "out.onnx").stat().st_size)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.onnx"]


def test_an_existing_output_is_replaced(source, tmp_path):
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")
    amp.transpile(source, target, level="O2")
    onnx.checker.check_model(onnx.load(target))


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_check_writes_nothing(tmp_path, exists):
    """Everything that was there, an older result included, is as it was."""
    model = chain("MatMul ({}, w)", "Mul ({}, k)", w=W, k=np.float32(6e4))
    onnx.save(model, tmp_path / "model.onnx")
    if exists:
        (tmp_path / "out.onnx").write_bytes(b"older result")
    before = support.folder_hash(tmp_path)
    with pytest.raises(CheckFailed, match="non-finite") as caught:
        amp.transpile(
            tmp_path / "model.onnx", tmp_path / "out.onnx", level="O2", inputs={"x": np.full((2, 4), 9e3, "f")}
        )
    assert support.folder_hash(tmp_path) == before
    assert caught.value.report.outputs["y"].nonfinite > 0
    assert caught.value.report.verdict.startswith("failed")


def test_a_tolerance_that_is_missed_writes_nothing(source, tmp_path):
    before = support.folder_hash(tmp_path)
    with pytest.raises(CheckFailed, match="relative norm"):
        amp.transpile(source, tmp_path / "out.onnx", level="O2", inputs=FEEDS, tolerance=1e-9)
    assert support.folder_hash(tmp_path) == before


REFUSED = {
    # arguments, and the error they raise
    "unknown level": ({"level": "O3"}, OptionError),
    "unknown dtype": ({"dtype": "int8"}, OptionError),
    "unknown target": ({"target": "tpu"}, OptionError),
    "tolerance below zero": ({"tolerance": -0.01}, OptionError),
    "region that matches nothing": ({"disable_amp": "nothing_is_called_so"}, OptionError),
    "guard that matches nothing": ({"guard": ["first", "nothing_is_called_so"]}, OptionError),
    "unknown input or output": ({"keep_io_types": ["nowhere"]}, OptionError),
    "inputs without a name": ({"inputs": {"wrong": X["x"]}}, InputError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_argument_is_refused_and_nothing_is_written(source, tmp_path, name):
    arguments, error = REFUSED[name]
    before = support.folder_hash(tmp_path)
    with pytest.raises(error):
        amp.transpile(source, tmp_path / "out.onnx", **arguments, prefer="size")
    assert support.folder_hash(tmp_path) == before


def test_the_source_is_never_the_destination(source):
    with pytest.raises(OutputError, match="same file"):
        amp.transpile(source, source, prefer="size")


def test_the_source_s_weights_are_never_overwritten(tmp_path):
    """A source with its weights in the file that would be the result, or that seems to be the result's."""
    onnx.save(big_network(), tmp_path / "model.onnx", save_as_external_data=True, location="out.onnx.data")
    files = {name: (tmp_path / name).read_bytes() for name in ("model.onnx", "out.onnx.data")}
    before = support.folder_hash(tmp_path)
    with pytest.raises(OutputError, match="choose another output"):
        amp.transpile(tmp_path / "model.onnx", tmp_path / "out.onnx.data", level="O2")
    assert support.folder_hash(tmp_path) == before
    for _ in range(2):  # the second time a result is replaced
        amp.transpile(tmp_path / "model.onnx", tmp_path / "out.onnx", level="O2", verify=False)
        assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_saving_a_loaded_program_over_its_source_is_refused(source):
    with pytest.raises(OutputError, match="same file"):
        amp.save(amp.load(source), source)


# ---- external data ----


def big_network():
    """Weights of 256 KiB: large enough to be streamed and to be stored outside."""
    return chain(
        "MatMul ({}, w)",
        "Relu ({})",
        "MatMul ({}, v)",
        shape="float[2,256]",
        w=array(256, 256),
        v=array(256, 256, seed=1),
    )


def test_external_data_in_external_data_out(tmp_path):
    model = big_network()
    folder = tmp_path / "in"
    folder.mkdir()
    onnx.save(
        onnx.ModelProto.FromString(model.SerializeToString()),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.bin",
    )
    before = support.folder_hash(folder)
    feeds = {"x": array(2, 256, scale=0.1)}
    report = amp.transpile(folder / "m.onnx", tmp_path / "out.onnx", level="O2", inputs=feeds)
    assert support.folder_hash(folder) == before
    assert (tmp_path / "out.onnx").stat().st_size < 10_000
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size == pytest.approx(2 * 256 * 256 * 2, rel=0.1)
    assert report.weight_bytes == (2 * 256 * 256 * 4, 2 * 256 * 256 * 2)
    written = onnx.load(tmp_path / "out.onnx")
    for name in ("w", "v"):
        expected = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)
        np.testing.assert_array_equal(support.constant(written, name), expected.astype(np.float16))
    support.assert_close(support.run(model, feeds), support.run_emulated(written, feeds), 0.02)


def test_a_file_with_external_data_loads_in_onnx_runtime_from_where_it_is(tmp_path):
    amp.save(amp.load(big_network()), tmp_path / "m.onnx", external=True)
    amp.transpile(tmp_path / "m.onnx", tmp_path / "low.onnx", level="O2", inputs={"x": array(2, 256)})
    session = amp.Session(tmp_path / "low.onnx", amp.CPUPlace(), emulate=False)
    assert session.run({"x": array(2, 256)})[0].shape == (2, 256)


WEIGHTS = 2 * 256 * 256 * 4
LIMITS = {"fits": (WEIGHTS, False), "does not fit": (WEIGHTS - 1, True)}


@pytest.mark.parametrize("name", LIMITS)
def test_weights_beyond_protobuf_s_limit_go_outside_by_themselves(tmp_path, monkeypatch, name):
    """An inline file beyond 2 GB is written without an error and can be read by nobody."""
    limit, external = LIMITS[name]
    assert 1.8e9 < saving._INLINE_LIMIT < 2.1e9
    monkeypatch.setattr(saving, "_INLINE_LIMIT", limit)
    amp.save(amp.load(big_network()), tmp_path / "m.onnx")
    assert len(list(tmp_path.glob("m.onnx.*.data"))) == external
    support.assert_valid(onnx.load(tmp_path / "m.onnx"))


def test_weights_are_converted_when_they_are_read_and_never_lie():
    """A lazy tensor is believed; declared type and shape must be those of its values, each time."""
    program = amp.transpile(big_network(), level="O2", verify=False).program
    for name in ("w", "v"):
        tensor = program.model.graph.initializers[name].const_value
        assert isinstance(tensor, ir.LazyTensor)
        for _ in range(2):
            values = tensor.numpy()
            assert values.dtype == tensor.dtype.numpy() == np.float16
            assert values.shape == tuple(tensor.shape) == (256, 256)
            assert len(tensor.tobytes()) == tensor.nbytes == 256 * 256 * 2


def test_reading_a_weight_leaves_its_file_unmapped(tmp_path):
    """style 3.1: the memory map of a weight is let go once it is converted."""
    amp.save(amp.load(big_network()), tmp_path / "m.onnx", external=True)
    source = amp.load(tmp_path / "m.onnx")
    amp.transpile(source, tmp_path / "low.onnx", level="O2", verify=False)
    for value in source.model.graph.initializers.values():
        assert isinstance(value.const_value, ir.ExternalTensor)
        assert value.const_value.raw is None


# ---- metadata ----


def test_metadata_and_regions_survive_conversion_saving_and_loading(tmp_path):
    """Version conversion and careless rewriting drop them."""
    model = network()
    model.metadata_props.add(key="author", value="somebody")
    model.graph.node[0].metadata_props.add(key="origin", value="layer 1")
    model.ir_version = 10
    program = amp.load(model)
    amp.mark_region(program, "disable_amp", nodes="^(last|inner)$")
    amp.save(program, tmp_path / "marked.onnx")
    report = amp.transpile(tmp_path / "marked.onnx", tmp_path / "out.onnx", level="O2", inputs=FEEDS)
    assert support.decisions(report)["last"] == support.decisions(report)["inner"] == "high"
    assert support.decisions(report)["first"] == "low"
    written = amp.load(tmp_path / "out.onnx").model
    held = {node.name: dict(node.metadata_props) for node in written.graph.all_nodes() if node.metadata_props}
    assert written.metadata_props["author"] == "somebody"
    assert held["first"] == {"origin": "layer 1"}
    assert held["last"] == held["inner"] == {"amp_transpiler.region": "disable_amp"}


def test_regions_survive_a_raised_opset():
    """onnx.version_converter drops the metadata of nodes."""
    model = parse(
        "(float[1,2,4,4] x) => (float[1,2,4,4] y) { [a] h = Conv (x, w) [b] r = Relu (h) [c] y = Conv (r, w) }",
        w=array(2, 2, 1, 1),
    )
    report = support.convert(model, {"x": array(1, 2, 4, 4)}, dtype="bfloat16", disable_amp="^c$")
    assert report.opset[1] >= 22
    assert support.decisions(report) == {"a": "low", "b": "low", "c": "high"}


# ---- opsets ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("opset", range(6, 27))
def test_every_opset_from_6_to_26(opset, dtype):
    mean = "ReduceMean <axes = [1]> (h)" if opset < 18 else "ReduceMean (h, axes)"
    model = parse(
        f"""(float[2,4] x) => (float[2,1] y) <int64[1] axes = {{1}}> {{ g = MatMul (x, w) h = Relu (g) y = {mean} }}""",
        opset=opset,
        ir_version=8 if opset < 22 else 10,
        w=W,
    )
    report = support.convert(model, X, dtype=dtype)
    assert "low" in support.decisions(report).values()
    assert report.opset == (opset, opset if dtype == "float16" else max(opset, 13))


@support.needs_onnx("1.23", "it ends at opset 27")
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_the_newest_opset_is_lowered_to_what_onnx_runtime_reads(level):
    """onnx 1.23's own defaults: opset 28 and IR 14."""
    model = parse(
        "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, w) }",
        opset=28,
        ir_version=14,
        w=W,
    )
    report = amp.transpile(model, level=level, inputs=X, prefer="size")
    support.assert_valid(report.program)
    assert report.opset == (28, 26)
    assert report.verdict_word == ("verified" if level == "auto" else "compared"), report.verdict
    support.assert_close({"y": np.maximum(X["x"] @ W, 0) @ W}, support.run_emulated(report.program, X), 0.02)


def test_the_opset_stays_where_no_type_needs_a_higher_one():
    assert support.convert(network(), FEEDS, "O2", "bfloat16").opset == (18, 18)


# ---- input and output types ----

IO = {
    # keep_io_types: types of x, y, z
    "all kept": (True, ("FLOAT", "FLOAT", "FLOAT")),
    "none kept": (False, ("FLOAT16", "FLOAT16", "FLOAT16")),
    "some kept": (["x", "z"], ("FLOAT", "FLOAT16", "FLOAT")),
    "nothing named": ([], ("FLOAT16", "FLOAT16", "FLOAT16")),
}


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("name", IO)
def test_types_of_inputs_and_outputs(name, level):
    keep, expected = IO[name]
    report = amp.transpile(network(), level=level, keep_io_types=keep, inputs=FEEDS, prefer="size")
    graph = report.program.model.graph
    assert tuple(value.dtype.name for value in (graph.inputs[0], *graph.outputs)) == expected
    assert graph.inputs[1].dtype == ir.DataType.BOOL
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["x", "c", "y", "z"]
    support.assert_valid(report.program)
    feeds = {**FEEDS, "x": FEEDS["x"].astype(graph.inputs[0].dtype.numpy())}
    support.assert_close(support.run(network(), FEEDS), support.run_emulated(report.program, feeds), 0.02)


# ---- idempotence and determinism ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "auto"])
def test_converting_a_converted_model_changes_nothing(level, dtype):
    once = amp.transpile(network(), level=level, dtype=dtype, inputs=FEEDS, prefer="size")
    again = amp.transpile(once.program, level=level, dtype=dtype, inputs=FEEDS, prefer="size")
    assert again.casts_removed == 0
    first, second = once.program.to_onnx(), again.program.to_onnx()
    assert [node.op_type for node in first.graph.node] == [node.op_type for node in second.graph.node]
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_two_runs_write_the_same_bytes(source, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        amp.transpile(source, tmp_path / name / "out.onnx", level="auto", inputs=FEEDS, prefer="size")
    assert (tmp_path / "a/out.onnx").read_bytes() == (tmp_path / "b/out.onnx").read_bytes()


LADDER = """(float[2,4] x) => (float[2,4] y) {
    [a1] a1 = MatMul (x, w) [a2] a2 = Relu (a1) [a3] a3 = Add (a2, x) [a4] a4 = Exp (a3)
    [b1] b1 = MatMul (x, v) [b2] b2 = Transpose (b1) [b3] b3 = Transpose (b2) [b4] b4 = Softmax (b3)
    [c1] c1 = Mul (a2, b3) [c2] c2 = Add (a4, b4) [c3] c3 = Sub (c1, c2) [c4] c4 = Tanh (c3)
    [d1] d1 = Gelu (c4) [d2] d2 = MatMul (d1, w) [d3] d3 = Abs (d2) [y] y = Max (d3, a2)
}"""


@pytest.mark.parametrize("level", ["OD", "O1", "O2", "auto"])
@pytest.mark.parametrize("promote", [False, True])
def test_the_order_of_independent_nodes_makes_no_difference(level, promote):
    """Decisions and results are the same however the file lists its nodes."""
    model = parse(LADDER, opset=20, w=W, v=array(4, 4, seed=2))
    expected = amp.transpile(model, level=level, use_promote=promote, verify=False, prefer="size")
    reference = support.run_emulated(expected.program, X)
    shuffle = random.Random(5)
    for _ in range(6):
        nodes = list(model.graph.node)
        shuffle.shuffle(nodes)
        shuffled = onnx.ModelProto.FromString(model.SerializeToString())
        del shuffled.graph.node[:]
        shuffled.graph.node.extend(nodes)
        converted = amp.transpile(shuffled, level=level, use_promote=promote, verify=False, prefer="size")
        assert support.decisions(converted) == support.decisions(expected)
        assert support.reasons(converted) == support.reasons(expected)
        assert sorted(support.casts(converted.program)) == sorted(support.casts(expected.program))
        np.testing.assert_array_equal(support.run_emulated(converted.program, X)["y"], reference["y"])


# ---- sources ----

KINDS = {
    "path": lambda path: path,
    "text of a path": str,
    "ModelProto": onnx.load,
    "onnx_ir.Model": ir.load,
    "Program": amp.load,
    "ONNXProgram": lambda path: type("ONNXProgram", (), {"model": ir.load(path)})(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_gives_the_same_result_and_stays_as_it_was(source, kind):
    model_given = KINDS[kind](source)
    report = amp.transpile(model_given, level="O2", inputs=FEEDS)
    expected = amp.transpile(source, level="O2", inputs=FEEDS).program.to_onnx()
    assert report.program.to_onnx().SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )
    left = model_given if isinstance(model_given, onnx.ModelProto) else amp.load(model_given).to_onnx()
    assert [node.op_type for node in left.graph.node] == [node.op_type for node in network().graph.node]
    assert all(tensor.data_type == onnx.TensorProto.FLOAT for tensor in left.graph.initializer)


@pytest.mark.parametrize("wrong", [3, None, [1, 2], b"bytes"])
def test_what_is_no_program_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="expected a path"):
        amp.transpile(wrong, prefer="size")


INVALID = {
    "a MatMul of float32 and float64": parse(
        "(float[2,4] x) => (float[2,4] y) { y = MatMul (x, d) }", d=W.astype(np.float64)
    ),
    "an input that nobody makes": parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, nowhere) }"),
    "an operator that does not exist": parse("(float[2,4] x) => (float[2,4] y) { y = Twist (x) }"),
    "an attribute that does not exist": parse("(float[2,4] x) => (float[2,4] y) { y = Relu <slope = 2.0> (x) }"),
    "a cycle": parse("(float[2,4] x) => (float[2,4] y) { a = Add (x, y) y = Relu (a) }"),
    "two nodes that make one value": parse("(float[2,4] x) => (float[2,4] y) { y = Relu (x) y = Exp (x) }"),
    "too few inputs": parse("(float[2,4] x) => (float[2,4] y) { y = Add (x) }"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_source_is_refused_as_such(name):
    with pytest.raises(ModelError):
        amp.transpile(INVALID[name], level="O2")


# ---- the report ----


def test_the_report_says_what_was_done():
    report = amp.transpile(network(), level="O1", inputs=[FEEDS, {**FEEDS, "c": np.array(False)}])
    rows = {row.name: row for row in report.decisions}
    assert set(rows) == {"first", "relu", "exp", "branch", "inner", "other", "last"}
    assert rows["inner"].scope == "branch/then_branch"
    assert rows["branch"].precision == "untouched"
    assert report.nodes == 7
    assert report.low_nodes == sum(row.precision == "low" for row in report.decisions)
    assert report.high_nodes == sum(row.precision == "high" for row in report.decisions)
    assert all(row.reason for row in report.decisions)
    assert report.casts == len(support.casts(report.program))
    assert {name: row.samples for name, row in report.outputs.items()} == {"y": 2, "z": 2}
    assert all(0 < row.relative < 0.02 and row.cosine > 0.99 for row in report.outputs.values())
    assert report.seconds > 0
    assert json.dumps(report.phases)


def test_level_o0_changes_nothing():
    """mp0 is identical."""
    report = amp.transpile(network(), level="O0", inputs=FEEDS)
    assert report.low_nodes == report.casts == 0
    np.testing.assert_array_equal(support.run(report.program, FEEDS)["z"], support.run(network(), FEEDS)["z"])
    assert {value.dtype.name for value in report.program.model.graph.initializers.values()} == {"FLOAT"}


def test_several_samples_are_all_compared():
    """One sample is not enough: the second one overflows."""
    model = chain("MatMul ({}, w)", "Mul ({}, k)", w=W, k=np.float32(1000))
    amp.transpile(model, level="O2", inputs=[X])
    with pytest.raises(CheckFailed, match="non-finite"):
        amp.transpile(model, level="O2", inputs=[X, {"x": X["x"] * 1000}])


def test_without_verification_nothing_is_run(source, tmp_path, monkeypatch):
    import onnxruntime

    def refuse(*_, **__):
        raise AssertionError("a session was opened")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    report = amp.transpile(source, tmp_path / "out.onnx", level="O2", verify=False)
    assert report.verdict.startswith("not checked")
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


LOW_IO = {
    "an initializer that callers may override": (
        parse("(float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }", ir_version=8, w=W),
        "float16",
    ),
    "bfloat16 at an opset whose Cast does not know it": (
        parse("(float[2,4,4] x) => (float[2] y) { y = Det (x) }", opset=12),
        "bfloat16",
    ),
}


@pytest.mark.parametrize("name", LOW_IO)
def test_low_inputs_and_outputs_are_valid_or_refused(name):
    model, dtype = LOW_IO[name]
    try:
        report = amp.transpile(model, level="O2", dtype=dtype, keep_io_types=False)
    except InputError as error:
        assert "keep_io_types" in str(error) or "opset" in str(error)  # noqa: PT017  # refusing is one of two right ways
        return
    support.assert_valid(report.program)
    feeds = {"x": array(*(size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim))}
    value = amp.Session(report.program, amp.CPUPlace()).run(feeds)
    support.assert_close(support.run(model, feeds), {"y": value[0]}, 0.05)
