"""From any float format to any: what the source's 16-bit values become, exactly, and what the report says of it."""

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import command
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.session import Session

FORMATS = ("float16", "bfloat16", "float32")
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
NAMES = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT"}
CODES = {"float16": 10, "bfloat16": 16, "float32": 1}
STATED = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float"}
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

# Body, and the interface where it is another: T is the format, K its number. Weight `w` is made by `model`.
BODIES = {
    "a matrix product": "y = MatMul (x, w)",
    "casts in and out": "h = Cast <to = 1> (x) f = Exp (h) g = Cast <to = K> (f) y = MatMul (g, w)",
    "a cast from an integer": "s = Shape (x) f = Cast <to = K> (s) m = ReduceMean <keepdims = 0> (f) y = Mul (x, m)",
    "a cast to an integer": "i = Cast <to = 7> (x) f = Cast <to = K> (i) y = Add (f, x)",
    "a cast like another": "s = Shape (x) f = CastLike (s, w) m = ReduceMean <keepdims = 0> (f) y = Mul (x, m)",
    "Resize, whose scales are float32": """
        k = Constant <value = int64[4] {1, 1, 4, 4}> () r = Reshape (x, k)
        scales = Constant <value = float[4] {1, 1, 2, 2}> () z = Resize <mode = "linear"> (r, , scales)
        c = Constant <value = int64[2] {16, 4}> () v = Reshape (z, c) y = MatMul (v, w)""",
    "a filled tensor": "s = Shape (x) f = ConstantOfShape <value = float[1] {0.75}> (s) y = Add (x, f)",
    "an identity matrix": "e = EyeLike <dtype = K> (x) y = MatMul (e, x)",
    "a normalisation": """a = Constant <value = int64[1] {0}> () s = ReduceMax <keepdims = 0> (w, a)
        y = LayerNormalization (x, s)""",
    "a constant": "c = Constant <value = float[4] {0.1, -2.5, 1000, 0.001}> () y = Mul (x, c)",
    "a sequence": "q = SplitToSequence <axis = 0> (x) y = ConcatFromSequence <axis = 0> (q)",
    "an empty sequence": "e = SequenceEmpty <dtype = K> () q = SequenceInsert (e, x) "
    "y = ConcatFromSequence <axis = 0> (q)",
    "dequantized weights": """
        q = Constant <value = int8[4, 4] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> ()
        s = Constant <value = float {0.125}> () d = DequantizeLinear (q, s) y = Mul (x, d)""",
    "a branch": """
        t = Constant <value = bool {1}> () o = Identity (w)
        y = If (t) <then_branch = a () => (T[4, 4] p) { p = MatMul (x, o) },
                    else_branch = b () => (T[4, 4] q) { k = Constant <value = float {2}> () q = Mul (x, k) }>""",
    "a loop": """
        n = Constant <value = int64 {3}> () t = Constant <value = bool {1}> ()
        y = Loop (n, t, x) <body = b (int64 i, bool c, T[4, 4] h) => (bool d, T[4, 4] g)
            { d = Identity (c) f = Cast <to = K> (i) e = Add (h, f) g = MatMul (e, w) }>""",
    "a scan": """
        z = Constant <value = float[4] {0, 0, 0, 0}> ()
        l, y = Scan <num_scan_inputs = 1, body = b (T[4] s, T[4] r) => (T[4] u, T[4] v)
            { u = Add (s, r) v = Mul (u, r) }> (z, x)""",
    "a function": "y = local.twice (x)",
}
FUNCTION = """
<domain: "local", opset_import: ["": 22]>
twice (a) => (b) { k = Constant <value = float {2}> () c = Mul (a, k) d = Cast <to = 1> (c) b = Cast <to = K> (d) }
"""
WEIGHT = np.random.default_rng(0).normal(size=(4, 4)) / 2
SAMPLE = np.random.default_rng(1).normal(size=(4, 4))


def model(body, source, opset=22, weight=WEIGHT, io=None):
    """Return a model whose floats are all of one format."""
    text = f"""<ir_version: 10, opset_import: ["": {opset}, "local": 1]>
        net (IO[4, 4] x) => (IO[N, 4] y) {{ {body} }} {FUNCTION if "local." in body else ""}"""
    text = text.replace("IO[", f"{STATED[io or source]}[").replace("to = K", f"to = {CODES[source]}")
    text = text.replace("dtype = K", f"dtype = {CODES[source]}")
    for before in " (":
        text = text.replace(f"{before}T[", f"{before}{STATED[source]}[")
    proto = onnx.parser.parse_model(text)
    for graph in (proto.graph, *proto.functions):
        _retype(graph.node, NUMPY[source])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(NUMPY[source]), "w"))
    return proto


def _retype(nodes, dtype):
    """Give the constants of nodes, which are written in float32, another format; Resize's scales are float32 always."""
    for node in nodes:
        for attribute in node.attribute:
            _retype(attribute.g.node, dtype)
            if attribute.t.data_type == onnx.TensorProto.FLOAT and node.output[0] != "scales":
                array = onnx.numpy_helper.to_array(attribute.t).astype(dtype)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))


def run(program, source):
    return Session(program, CPUPlace()).run({"x": SAMPLE.astype(NUMPY[source])})[0]


def formats_inside(program):
    """Return the 16-bit formats of values that nodes compute, other than casts at the border of the program."""
    border = {*program.model.graph.outputs}
    return {
        value.dtype.name
        for node in all_nodes(program.model)
        for value in node.outputs
        if value.dtype is not None and value.dtype.name in ("FLOAT16", "BFLOAT16") and value not in border
    }


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_format_becomes_every_other(body, source, target):
    if "Sequence" in body and source == "bfloat16":
        pytest.skip("ONNX has no sequences of bfloat16")
    source_model = model(body, source)
    onnx.checker.check_model(source_model, full_check=True)
    report = amp.transpile(
        source_model, dtype=target, level="O2" if target != "float32" else "auto", verify=False, prefer="size"
    )
    converted = to_proto(report.program.model)
    onnx.checker.check_model(converted, full_check=True)
    types = {
        value.name: value.type.tensor_type.elem_type for value in (*converted.graph.input, *converted.graph.output)
    }
    assert types == {"x": CODES[source], "y": CODES[source]}, "inputs and outputs keep their types"
    assert formats_inside(report.program) <= {NAMES[target]}
    exact, low = (run(program, source).astype(np.float64) for program in (load(source_model), report.program))
    rounding = max(2.0**-8 if "bfloat16" in (source, target) else 0.0, 2.0**-11 if "float16" in (source, target) else 0)
    assert np.linalg.norm(exact - low) <= 4 * rounding * np.linalg.norm(exact) + 1e-6
    for tensor in converted.graph.initializer:
        if tensor.name == "w":
            values = WEIGHT.astype(NUMPY[source])
            held = [values.astype(NUMPY[name]) for name in (source, target, "float32")]
            assert any(np.array_equal(onnx.numpy_helper.to_array(tensor), array) for array in held)


@pytest.mark.parametrize("source", FORMATS[:2])
@pytest.mark.parametrize("target", FORMATS)
def test_inputs_and_outputs_change_if_they_may(source, target):
    for keep, expected in ((False, target), ({"x": "low"}, None), (["x"], None)):
        report = amp.transpile(
            model("y = MatMul (x, w)", source), dtype=target, keep_io_types=keep, verify=False, prefer="size"
        )
        graph = report.program.model.graph
        dtypes = [graph.inputs[0].dtype.name, graph.outputs[0].dtype.name]
        if expected is not None:
            assert dtypes == [NAMES[target]] * 2
        else:
            assert dtypes == (
                [NAMES[target], NAMES[source]] if isinstance(keep, dict) else [NAMES[source], NAMES[target]]
            )


def test_float32_is_exact():
    """Every number of both formats survives, down to the smallest; nothing but the type changes."""
    for source in ("float16", "bfloat16"):
        every = np.arange(2**16, dtype=np.uint16).view(NUMPY[source])
        proto = onnx.helper.make_model(
            onnx.helper.make_graph(
                [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
                "net",
                [onnx.helper.make_tensor_value_info("x", CODES[source], [2**16])],
                [onnx.helper.make_tensor_value_info("y", CODES[source], [2**16])],
                [onnx.numpy_helper.from_array(every, "w")],
            ),
            opset_imports=[onnx.helper.make_opsetid("", 17)],
            ir_version=8,
        )
        report = amp.transpile(proto, dtype="float32", verify=False)
        [tensor] = to_proto(report.program.model).graph.initializer
        assert np.array_equal(onnx.numpy_helper.to_array(tensor), every.astype(np.float32), equal_nan=True)
        assert report.weight_bytes == (2**17, 2**18)
        assert report.casts == 2
        assert [row.reason for row in report.decisions] == [f"computed in {source} before"]


# Constants in bfloat16 or float16 -> what the report says of them in the other format.
REFITS = {
    "exact": ([1.0, -0.5, 0.25, 240.0], "bfloat16", "2 of 2 constants are exact in float16"),
    "beyond the range": ([1e6, 1, 1, 1], "bfloat16", "1 of 2 constants are exact in float16; beyond its range: 'w'"),
    "too small": ([1e-30, 1, 1, 1], "bfloat16", "some elements become zero: 'w'"),
    "subnormal": ([2.0**-16 * 1.25, 2.0**-24 * 1.5, 1, 1], "bfloat16", "rounded: 'w'"),
    "infinite": ([np.inf, 1, 1, 1], "bfloat16", "2 of 2 constants are exact in float16"),
    "digits": ([1.0009765625, 1, 1, 1], "float16", "1 of 2 constants are exact in bfloat16; rounded: 'w'"),
    "few digits": ([1.5, 1, 1, 1], "float16", "2 of 2 constants are exact in bfloat16"),
}


@pytest.mark.parametrize(("row", "source", "expected"), REFITS.values(), ids=REFITS)
def test_range_faults_are_named(row, source, expected):
    target = {"bfloat16": "float16", "float16": "bfloat16"}[source]
    body = "k = Constant <value = float {2}> () m = Mul (x, k) y = MatMul (m, w)"
    report = amp.transpile(model(body, source, weight=np.array([row] * 4)), dtype=target, verify=False, prefer="size")
    assert [note for note in report.notes if expected in note], report.notes


def test_readers_of_what_overflows_stay_float32():
    weight = np.full((4, 4), 1e6)
    report = amp.transpile(
        model("y = MatMul (x, w)", "bfloat16", weight=weight), dtype="float16", verify=False, prefer="size"
    )
    [row] = report.decisions
    assert row.precision == "high"
    assert row.reason.endswith("beyond float16's 65504")


# ---- verification ----


@pytest.mark.parametrize("source", FORMATS[:2])
@pytest.mark.parametrize("target", FORMATS)
def test_conversions_are_verified(source, target):
    body = "h = MatMul (x, w) g = Tanh (h) y = Add (g, x)"
    report = amp.transpile(model(body, source), dtype=target, inputs={"x": SAMPLE.astype(NUMPY[source])}, prefer="size")
    if source == target:
        assert report.verdict.startswith("not checked: nothing to do")
        return
    word = {"float32": "compared"}.get(target, "verified")  # widening has no limit of its own
    assert report.verdict.startswith(f"{word}: within 0")
    assert "of the source" in report.verdict
    assert "on 1 given sample" in report.verdict
    stands_in = [note for note in report.notes if note.startswith("compared with the source")]
    expected = {"float16": "in float32", "float32": "emulated"}[target] if source == "bfloat16" else None
    assert [expected in note for note in stands_in] == ([] if expected is None else [True])


def test_a_wrong_conversion_would_fail(monkeypatch):
    """A widening that loses a factor is found, for either format and though bfloat16 does not run on the CPU."""
    from amp_transpiler.passes import float32_edit

    def wrong(tensor, name):
        return onnx_tensor(tensor.numpy().astype(np.float32) * 3, name)

    import onnx_ir as ir

    def onnx_tensor(array, name):
        return ir.Tensor(array, name=name)

    monkeypatch.setattr(float32_edit, "wide_tensor", wrong)
    for source in ("float16", "bfloat16"):
        with pytest.raises(amp.CheckFailed):
            amp.transpile(model("y = MatMul (x, w)", source), dtype="float32", tolerance="5%")


# ---- nothing to do ----

NEEDLESS = {
    "float16 in float16": ("float16", {}, "the model holds float16 already"),
    "bfloat16 in bfloat16": ("bfloat16", {"dtype": "bfloat16"}, "the model holds bfloat16 already"),
    "float32 in float32": ("float32", {"dtype": "float32"}, "no 16-bit floats"),
    "unverified": ("float16", {"verify": False}, "the model holds float16 already"),
    "outputs that may change": ("float16", {"keep_io_types": False}, "the model holds float16 already"),
    "its own opset": ("float16", {"opset": 22}, "the model holds float16 already"),
}


@pytest.mark.parametrize(("source", "options", "expected"), NEEDLESS.values(), ids=NEEDLESS)
def test_nothing_to_do(source, options, expected, tmp_path):
    path, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    onnx.save(model("y = MatMul (x, w)", source), path)
    report = amp.transpile(path, **options, prefer="size")
    assert report.verdict.startswith("not checked: nothing to do: ")
    assert expected in report.verdict
    assert (report.low_nodes, report.casts, report.nodes) == (0, 0, 1)
    assert report.destination is None
    named = amp.transpile(path, result, **options, prefer="size")
    assert result.read_bytes() == path.read_bytes()
    assert named.destination == str(result)


SOMETHING = {
    "a node that is float32 still": ("h = Cast <to = 1> (x) g = MatMul (h, h) y = Cast <to = K> (g)", {"level": "O2"}),
    "another format": ("y = MatMul (x, w)", {"dtype": "bfloat16"}),
    "float32": ("y = MatMul (x, w)", {"dtype": "float32"}),
    "another opset": ("y = MatMul (x, w)", {"opset": 23}),
    "a pair of casts": ("f = Cast <to = 1> (x) g = Cast <to = K> (f) y = MatMul (g, w)", {"level": "O2"}),
}


def test_nothing_to_do_needs_no_types_in_the_source(tmp_path):
    """The source imports no version of an operator's domain, as ONNX Runtime allows."""
    path = tmp_path / "model.onnx"
    onnx.save(model("h = MatMul (x, w) y = com.microsoft.Gelu (h)", "float16"), path)
    report = amp.transpile(path, tmp_path / "result.onnx", prefer="size")
    assert report.verdict.startswith("not checked: nothing to do: ")
    assert [value.dtype.name for node in report.program.model.graph for value in node.outputs] == ["FLOAT16"] * 2


@pytest.mark.parametrize(("body", "options"), SOMETHING.values(), ids=SOMETHING)
def test_something_to_do(body, options, tmp_path):
    report = amp.transpile(model(body, "float16"), tmp_path / "result.onnx", verify=False, **options, prefer="size")
    assert report.verdict.startswith("not checked: verification was")
    assert (tmp_path / "result.onnx").exists()


def test_what_becomes_low_for_no_other_reason_is_written_as_ever(tmp_path):
    lists = amp.AutoMixedPrecisionLists(None, ["MatMul"])
    source_model = model("y = MatMul (x, w)", "float32")
    report = amp.transpile(source_model, tmp_path / "result.onnx", level="O1", amp_lists=lists, verify=False)
    assert report.low_nodes == 0
    assert report.verdict == "not checked: verification was switched off"
    assert (tmp_path / "result.onnx").exists()


@pytest.mark.parametrize("named", [False, True])
def test_the_command_writes_no_needless_file_of_its_own_accord(named, tmp_path, capsys):
    path, result = tmp_path / "model.onnx", tmp_path / "own.onnx"
    onnx.save(model("y = MatMul (x, w)", "float16"), path)
    assert command.main([str(path), *(["-o", str(result)] if named else [])]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", *(["own.onnx"] if named else [])]


@pytest.mark.parametrize("target", FORMATS)
def test_the_command_names_the_result_by_its_format(target, tmp_path, capsys):
    path = tmp_path / "model.onnx"
    onnx.save(model("y = MatMul (x, w)", "float16" if target != "float16" else "bfloat16"), path)
    assert command.main([str(path), "--dtype", SHORT[target], "--io-types", "low"]) == 0
    written = onnx.load(tmp_path / f"model.{SHORT[target]}.onnx")
    assert written.graph.input[0].type.tensor_type.elem_type == CODES[target]
    assert ("compared" if target == "float32" else "plausible") in capsys.readouterr().out


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"level": "O2"}, ["dtype float32", "level 'O2'"]),
        ({"policy": "torch"}, ["dtype float32", "policy 'torch'"]),
        ({"preset": "mp4"}, ["dtype float32", "preset 'mp4'"]),
        ({"mixed_ops": "gemm"}, ["dtype float32", "mixed_ops"]),
        ({"use_promote": True}, ["dtype float32", "use_promote"]),
        ({"amp_lists": amp.AutoMixedPrecisionLists(["Exp"])}, ["dtype float32", "list"]),
        ({"guard": "x"}, ["guard", "everything becomes float32"]),
        ({"disable_amp": "x"}, ["disable_amp", "everything becomes float32"]),
        ({"include": "x"}, ["include", "everything becomes float32"]),
        ({"dtype": "float64"}, ["'float64'", "'float16', 'bfloat16' or 'float32'"]),
    ],
)
def test_options_that_have_no_meaning_for_float32_are_refused(options, parts):
    with pytest.raises(OptionError) as error:
        amp.transpile(model("y = MatMul (x, w)", "float16"), verify=False, **{"dtype": "float32", **options})
    assert [part for part in parts if part not in str(error.value)] == []


def test_a_sequence_at_the_border_must_change_its_type():
    text = """<ir_version: 10, opset_import: ["": 17]>
    net (float16[4] x) => (seq(float16[N]) y) { y = SplitToSequence <axis = 0> (x) }"""
    with pytest.raises(OptionError, match=r"output 'y' is a seq.* cannot be cast.*--io-types y=low"):
        amp.transpile(onnx.parser.parse_model(text), dtype="float32", verify=False)
    report = amp.transpile(onnx.parser.parse_model(text), dtype="float32", keep_io_types={"y": "low"}, verify=False)
    assert report.program.model.graph.outputs[0].dtype.name == "FLOAT"


def test_nodes_kept_out_of_it_become_float32_and_the_report_says_so():
    """They cannot stay in a format that the target may not run beside the new one."""
    report = amp.transpile(
        model("[kept] h = MatMul (x, w) y = MatMul (h, w)", "bfloat16"), disable_amp="kept", verify=False, prefer="size"
    )
    assert [(row.precision, row.name == "kept") for row in report.decisions] == [("high", True), ("low", False)]
    assert "nodes inside disable_amp regions that were bfloat16 and compute in float32 now: 1" in report.notes
