"""Every trap of `trap_cases.py`: its model converts to a valid one, right under emulation.

The table of graphs is in `trap_cases.py`; what takes more than a graph and its inputs to show is here. The traps of
files are in `test_transpile.py`.
"""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from tests import support
from tests.support import array, chain, parse
from tests.trap import W, X
from tests.trap_cases import TRAPS

FAST = [("O2", "float16"), ("auto", "float16"), ("O2", "bfloat16")]
SLOW = [("O1", "float16"), ("O1", "bfloat16"), ("auto", "bfloat16"), ("OD", "float16")]
SETTINGS = [*FAST, *(pytest.param(*row, marks=[pytest.mark.slow, pytest.mark.sampled(2)]) for row in SLOW)]


@pytest.mark.parametrize(("level", "dtype"), SETTINGS)
@pytest.mark.parametrize("name", TRAPS)
def test_converts_to_a_valid_and_close_model(name, level, dtype):
    trap = TRAPS[name]
    if not trap.random:
        report = support.convert(trap.model, trap.feeds, level, dtype, limit=trap.limit)
        expected = (
            "not checked: nothing to do"
            if "nothing to do" in report.verdict
            else "compared"
            if level != "auto"
            else "plausible: "  # a branch that the data do not take
            if "never ran" in report.verdict
            else ("verified", "estimated: ")  # of kernels that nobody has measured, such as DequantizeLinear's
        )
        assert report.verdict.startswith(expected), report.verdict
        return
    report = amp.transpile(trap.model, level=level, dtype=dtype, verify=False, prefer="size")
    onnx.checker.check_model(report.program.to_onnx(), full_check=True)
    if trap.no_cpu_bfloat16 and dtype == "bfloat16":
        return
    support.assert_valid(report.program)
    result, expected = support.run_emulated(report.program, trap.feeds), support.run(trap.model, trap.feeds)
    assert {n: (v.shape, v.dtype) for n, v in result.items()} == {n: (v.shape, v.dtype) for n, v in expected.items()}
    assert all(np.isfinite(value).all() for value in result.values())


@pytest.mark.parametrize("name", [name for name, trap in TRAPS.items() if trap.low or trap.high])
def test_operators_are_low_where_they_can_be_and_nowhere_else(name):
    trap = TRAPS[name]
    report = amp.transpile(trap.model, level="O2", verify=False)
    precision = {(row.op.split("::")[-1], str(row.precision)) for row in report.decisions}
    for op in trap.low:
        assert (op, "float16") in precision
        assert (op, "float32") not in precision
    assert not {(op, "float16") for op in trap.high} & precision


# ---- shared initializers ----

LOSSY = np.array([[1.0001, 2.0003], [3.0007, -1.0009]], np.float32)  # every element changes when rounded
XX = {"x": array(2, 2)}

SHARED = {
    # graph: initializers of the result that hold the weight, by type, at O1
    "low readers only": ("h = MatMul (x, w) y = MatMul (h, w)", {"w": "FLOAT16"}),
    "high readers only": ("h = Pow (x, w) y = Pow (h, w)", {"w": "FLOAT"}),
    "one of each": ("h = MatMul (x, w) e = Pow (w, two) y = Add (h, e)", {"w": "FLOAT", "w__amp_fp16": "FLOAT16"}),
    "two of each": (
        "h = MatMul (x, w) g = MatMul (h, w) e = Pow (w, two) f = Exp (w) a = Add (e, f) y = Add (g, a)",
        {"w": "FLOAT", "w__amp_fp16": "FLOAT16"},
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_weight_is_exact_for_every_reader_and_copied_only_when_needed(name):
    body, expected = SHARED[name]
    model = parse(f"(float[2,2] x) => (float[2,2] y) <float two = {{2.0}}> {{ {body} }}", w=LOSSY)
    feeds = {"x": np.abs(XX["x"])}
    report = amp.transpile(model, level="O1", inputs=feeds)
    held = {
        weight: value.dtype.name
        for weight, value in report.program.model.graph.initializers.items()
        if tuple(value.shape) == (2, 2)
    }
    assert held == expected
    for weight, dtype in held.items():
        exact = LOSSY if dtype == "FLOAT" else LOSSY.astype(np.float16)
        np.testing.assert_array_equal(support.constant(report.program, weight), exact)
    support.assert_valid(report.program)


def test_the_float32_reader_of_a_shared_weight_gets_every_bit_of_it():
    model = parse("(float[2,2] x) => (float[2,2] y, float[2,2] e) { y = MatMul (x, w) e = Exp (w) }", w=LOSSY)
    report = amp.transpile(model, level="O1", inputs=XX)
    exact, low = support.run(model, XX)["e"], support.run_emulated(report.program, XX)["e"]
    np.testing.assert_array_equal(low, exact)


def test_a_weight_shared_with_a_body_is_exact_there():
    model = parse(
        """(float[2,2] x, bool c) => (float[2,2] y) {
            h = MatMul (x, w)
            y = If (c) <
                then_branch = t () => (float[2,2] p) { e = Exp (w) p = Add (h, e) },
                else_branch = e () => (float[2,2] q) { q = MatMul (h, w) }
            >
        }""",
        w=LOSSY,
    )
    for choice in (True, False):
        report = support.convert(model, {**XX, "c": np.array(choice)}, "O1")
        np.testing.assert_array_equal(support.constant(report.program, "w"), LOSSY)


# ---- constants ----

SCALARS = {
    # value: what it becomes where it may round
    "1.4: tiny negative numbers keep their sign": (-1e-9, -(2.0**-24)),
    "1.4: tiny positive numbers do not vanish": (1e-9, 2.0**-24),
    "1.1: 30000 is not clamped to 10000": (30000.0, 30000.0),
    "5: -3.4e38 becomes the lowest finite number": (-3.4028235e38, -65504.0),
    "5: infinity stays infinite": (-np.inf, -np.inf),
    "1.1: zero stays zero": (0.0, 0.0),
    "1.1: NaN stays NaN": (np.nan, np.nan),
}


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_is_rounded_and_neither_overflows_nor_vanishes(name):
    value, expected = SCALARS[name]
    model = chain("MatMul ({}, w)", "Min ({}, k)", w=W, k=np.float32(value))
    program = amp.transpile(model, level="O2", verify=False).program
    rounded_value = support.constant(program, "k")
    assert rounded_value.dtype == np.float16
    np.testing.assert_array_equal(rounded_value.astype(np.float64), np.float64(expected))


@pytest.mark.parametrize(
    ("dtype", "scale", "precision"),
    [
        ("float16", 1e4, "low"),  # clamped at 1e4
        ("float16", 1e6, "high"),
        ("bfloat16", 1e6, "low"),  # float16's thresholds applied to bfloat16
        ("bfloat16", 1e-30, "low"),
        ("float16", 1e-9, "high"),
        ("float16", 1e-3, "low"),
    ],
)
def test_a_weight_out_of_range_keeps_its_reader_float32(dtype, scale, precision):
    report = amp.transpile(chain("MatMul ({}, w)", w=W * scale), level="O2", dtype=dtype, verify=False)
    assert [row.precision for row in report.decisions] == [precision]


@pytest.mark.parametrize(("ir_version", "overridable"), [(3, False), (4, True), (8, True)])
def test_an_initializer_that_is_an_input_can_still_be_overridden(ir_version, overridable):
    """From IR 4 on, listing an initializer as an input says that callers may replace it."""
    model = parse(
        "(float[2,4] x, float[4,4] w) => (float[2,4] y) { h = MatMul (x, w) y = Relu (h) }",
        opset=8,
        ir_version=ir_version,
        w=W,
    )
    report = support.convert(model, X)
    other = {**X, "w": array(4, 4, seed=9)}
    if overridable:
        expected = support.run(model, other)
        support.assert_close(expected, support.run_emulated(report.program, other), 0.02)
    else:
        assert [value.name for value in report.program.model.graph.inputs] == ["x"]
        assert support.dtype_of(report.program, "w") == "FLOAT16"
        assert any("constants now" in note for note in report.notes)


def test_an_initializer_that_is_an_output_stays_exact():
    report = support.convert(TRAPS["initializer that is an output, too"].model, X)
    np.testing.assert_array_equal(support.run_emulated(report.program, X)["w"], W)


# ---- casts ----

CASTS = {
    # name: (level, body, casts of the result)
    "1.1: an input is cast once for all its readers": (
        "O2",
        "a = MatMul (x, w) b = MatMul (x, w) y = Add (a, b)",
        {("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")},
    ),
    "1.3: two black operators read one tensor": (
        "O1",
        "h = MatMul (x, w) a = Exp (h) b = Tan (h) y = Add (a, b)",
        {("x", "FLOAT16"), ("h", "FLOAT")},
    ),
    "1.3: one tensor read twice by one black operator": (
        "O1",
        "h = MatMul (x, w) y = PRelu (h, h)",
        {("x", "FLOAT16"), ("h", "FLOAT")},
    ),
    "one tensor in both directions": (
        "O1",
        """h = MatMul (x, w) e = Exp (h) a = MatMul (e, w) b = MatMul (e, w) c = Tan (e) d = Add (a, b) g = Exp (d)
            y = Add (g, c)""",
        {("x", "FLOAT16"), ("h", "FLOAT"), ("e", "FLOAT16"), ("d", "FLOAT")},
    ),
    "a chain of low operators has casts at its ends alone": (
        "O2",
        "a = MatMul (x, w) b = Relu (a) c = MatMul (b, w) d = Transpose (c) e = Transpose (d) y = MatMul (e, w)",
        {("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")},
    ),
    "1.3: nothing low, no casts": ("O1", "a = Exp (x) y = Softmax (a)", set()),
}


@pytest.mark.parametrize("name", CASTS)
def test_one_cast_per_tensor_and_direction(name):
    level, body, expected = CASTS[name]
    model = parse(f"(float[2,4] x) => (float[2,4] y) {{ {body} }}", w=np.abs(W))
    program = support.convert(model, {"x": np.abs(X["x"])}, level).program
    casts_there = [(source, target) for source, _, target in support.casts(program)]
    assert sorted(casts_there) == sorted(expected)


def test_a_captured_value_is_cast_once_for_all_bodies():
    """Casts of captured values."""
    model = parse(
        """(float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) {
            y = If (c) <then_branch = t () => (float[2,4] p) { p = MatMul (x, w) },
                        else_branch = e () => (float[2,4] q) { q = MatMul (x, v) }>
            z = If (c) <then_branch = t2 () => (float[2,4] p2) { p2 = MatMul (x, v) },
                        else_branch = e2 () => (float[2,4] q2) { q2 = MatMul (x, w) }>
        }""",
        w=W,
        v=W + 1,
    )
    program = support.convert(model, {**X, "c": np.array(True)}).program
    assert [(source, target) for source, _, target in support.casts(program) if target == "FLOAT16"] == [
        ("x", "FLOAT16")
    ]


def test_casts_of_a_body_stand_in_that_body():
    """Casts of a body's values landed in the main graph."""
    model = TRAPS["black operator in an If body"].model
    program = support.convert(model, {**X, "c": np.array(True)}, "O1").program
    body = next(n for n in program.model.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    types = {value.name: value.dtype.name for node in body for value in node.outputs}
    assert types["e"] == "FLOAT"
    assert types["p"] in ("FLOAT", "FLOAT16")
    assert any(node.op_type == "Cast" and node.inputs[0].name == "e" for node in body)


def test_the_user_s_truncation_by_casts_is_kept():
    """A cast to int64 and back is no round trip; 0.76 wrong in today's tool."""
    trap = TRAPS["float -> int64 -> float truncates"]
    program = amp.transpile(trap.model, level="O2", inputs=trap.feeds).program
    result = support.run_emulated(program, trap.feeds)["y"]
    support.assert_close({"y": np.trunc(trap.feeds["x"]) @ W}, {"y": result}, 1e-3)
    assert {target for _, _, target in support.casts(program)} >= {"INT64"}


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_the_user_s_rounding_by_casts_is_kept(level):
    """A cast down and up rounds; folding it away changes the result."""
    model = parse(
        """(float[2,4] x) => (float[2,4] y) {
            l = Cast <to = 10> (x) f = Cast <to = 1> (l) e = Exp (f) y = Sub (e, x)
        }"""
    )
    feeds = {"x": array(2, 4, scale=3)}
    report = amp.transpile(
        model,
        level=level,
        amp_lists=amp.AutoMixedPrecisionLists(custom_black_list=["Exp", "Sub"]),
        inputs=feeds,
        prefer="size",
    )
    np.testing.assert_array_equal(support.run_emulated(report.program, feeds)["y"], support.run(model, feeds)["y"])


def test_low_to_float32_to_low_is_folded_and_counted():
    model = parse(
        """(float16[2,4] x) => (float16[2,4] y) {
            a = MatMul (x, w) f = Cast <to = 1> (a) b = Cast <to = 10> (f) y = MatMul (b, w)
        }""",
        w=W.astype(np.float16),
    )
    report = support.convert(model, {"x": X["x"].astype(np.float16)})
    assert support.casts(report.program) == []
    assert report.casts_removed == 2


# ---- slots and outputs that stay float32 ----

SLOTS = {
    "1.3: LayerNormalization's Mean and InvStdDev": (
        "LayerNormalization with Mean and InvStdDev",
        "LayerNormalization",
        {"inputs": ["FLOAT16", "FLOAT16", "FLOAT16"], "outputs": ["FLOAT16", "FLOAT", "FLOAT"]},
    ),
    "Resize's scales": (
        "Resize with scales and roi",
        "Resize",
        {"inputs": ["FLOAT16", None, "FLOAT"], "outputs": ["FLOAT16"]},
    ),
    "Resize's scales at opset 10": (
        "Resize of opset 10",
        "Resize",
        {"inputs": ["FLOAT16", "FLOAT"], "outputs": ["FLOAT16"]},
    ),
    "1.4: NonMaxSuppression": (
        "NonMaxSuppression stays float32",
        "NonMaxSuppression",
        {"inputs": ["FLOAT", "FLOAT", "INT64", "FLOAT", "FLOAT"], "outputs": ["INT64"]},
    ),
}


@pytest.mark.parametrize("name", SLOTS)
def test_slots_that_must_stay_float32_do(name):
    row, op_type, expected = SLOTS[name]
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Resize", "LayerNormalization"])
    program = support.convert(TRAPS[row].model, TRAPS[row].feeds, amp_lists=lists).program
    (node,) = support.nodes(program, op_type)
    for index, dtype in enumerate(expected["inputs"]):
        assert dtype is None or node.inputs[index].dtype.name == dtype, index
    assert [value.dtype.name for value in node.outputs] == expected["outputs"]


# ---- names, order, scopes ----


def test_unnamed_nodes_get_names_of_their_own():
    model = TRAPS["unnamed nodes"].model
    assert not any(node.name for node in model.graph.node)
    report = support.convert(model, X, "O1")
    names = [node.name for node in support.nodes(report.program)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert len({row.name for row in report.decisions}) == report.nodes == 5


def test_new_names_collide_with_none_of_any_scope():
    """The names that casts would like are taken, in the main graph and in a body."""
    model = parse(
        """(float[2,4] x, bool c, float[2,4] y__amp_before_fp32) => (float[2,4] y) {
            x__amp_fp16 = Exp (x) h = MatMul (x, w)
            y = If (c) <
                then_branch = t () => (float[2,4] p) { h__amp_fp32 = Exp (h) p = MatMul (h__amp_fp32, w) },
                else_branch = e () => (float[2,4] q) { x__amp_cast_fp16 = Add (x__amp_fp16, h) q = MatMul
                    (x__amp_cast_fp16, w) }
            >
        }""",
        w=W,
    )
    for choice in (True, False):
        report = support.convert(model, {**X, "c": np.array(choice), "y__amp_before_fp32": X["x"]}, "O1")
        graph = report.program.model.graph
        names = [value.name for node in graph.all_nodes() for value in node.outputs]
        assert len(set(names)) == len(names)


def test_a_node_is_written_before_it_is_read():
    """Casts at the end of the list of nodes; checked without ONNX Runtime, which sorts them itself."""
    for trap in TRAPS.values():
        proto = amp.transpile(trap.model, level="O1", verify=False).program.to_onnx()
        onnx.checker.check_model(proto)


def test_serialisation_warns_of_no_half_typed_value(caplog):
    """A value with a shape and no type is warned of, once each."""
    with caplog.at_level(logging.WARNING):
        for name in ("declared types of intermediates", "nested If"):
            trap = TRAPS[name]
            amp.transpile(trap.model, level="O2", verify=False).program.to_onnx()
    assert not caplog.records


def test_stale_types_of_intermediates_are_written_anew():
    """`value_info` left at fp32 makes strict inference fail and ONNX Runtime refuse."""
    model = TRAPS["declared types of intermediates"].model
    program = support.convert(model, X, "O1").program
    declared = {info.name: info.type.tensor_type.elem_type for info in program.to_onnx().graph.value_info}
    assert declared["h"] == onnx.TensorProto.FLOAT16


def test_a_wrong_declared_type_of_an_intermediate_is_put_right():
    model = parse("(float[2,4] x) => (float[2,4] y) <float16[2,4] h> { h = MatMul (x, w) y = Relu (h) }", w=W)
    report = amp.transpile(model, level="O2")
    support.assert_valid(report.program)
    support.assert_close({"y": np.maximum(X["x"] @ W, 0)}, support.run_emulated(report.program, X), 0.02)


def test_wrong_declared_shapes_are_named_as_the_source_s_fault():
    """PaddleOCR 7283: stale shapes break today's converters."""
    model = TRAPS["PaddleOCR: wrong declared shape of an intermediate"].model
    report = support.convert(model, X)
    assert any(note.startswith("fault of the source") and "shape" in note for note in report.notes)


def test_a_fault_of_onnx_s_own_checker_is_named_as_the_source_s():
    """ONNX's full check refuses MeanVarianceNormalization from opset 13 on, converted or not."""
    model = parse("(float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization (x) }", opset=18)
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(model, full_check=True)
    report = amp.transpile(model, level="O2")
    assert report.verdict_word == "compared", report.verdict
    assert any(note.startswith("fault of the source") for note in report.notes)


# ---- unknown operators ----


def test_operators_of_an_unknown_domain_stay_float32_and_it_is_said():
    """Any operator without a schema ends AutoCast with a NameError."""
    model = parse(
        """(float[2,4] x) => (float[2,4] y) {
            h = MatMul (x, w) [mine] f = my.domain.Twist <strength = 0.5> (h) y = MatMul (f, w)
        }""",
        imports=', "my.domain": 1',
        w=W,
    )
    report = amp.transpile(model, level="O2")
    assert report.verdict.startswith("structure only: ")
    assert "Twist" in report.verdict
    assert support.decisions(report)["mine"] != "low"
    (node,) = support.nodes(report.program, "Twist")
    assert node.inputs[0].dtype == ir.DataType.FLOAT
    assert node.outputs[0].dtype in (ir.DataType.FLOAT, None)
    assert report.low_nodes == 2
    onnx.checker.check_model(report.program.to_onnx())


BEHIND_UNKNOWN = {  # operators between one without a schema and a product; only the product tells their type
    "Flatten": "b = Flatten (a)",
    "MaxPool, of which bfloat16 has none": "p = MaxPool <kernel_shape = [1,1], strides = [1,1]> (a) b = Flatten (p)",
    "Relu and Sigmoid": "p = Relu (a) q = Sigmoid (p) b = Flatten (q)",
    "a chain of five": "p = Neg (a) q = Abs (p) r = Exp (q) t = Softmax (r) b = Flatten (t)",
    "two branches": "p = Tanh (a) q = Relu (a) r = Add (p, q) b = Flatten (r)",
    "BatchNormalization": "p = BatchNormalization (a, s, s, s, s) b = Flatten (p)",
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", BEHIND_UNKNOWN)
def test_what_stands_behind_an_unknown_operator_has_the_type_of_its_last_reader(name, dtype):
    """A fuzzer's mutant: each pass typed one value more, and a node that was taken for none of float32 became low."""
    model = parse(
        f"""(float[2,3,1,1] x) => (float[2,2] y) <float[3] s = {{1, 1, 1}}> {{
            a = my.domain.Twist (x) {BEHIND_UNKNOWN[name]} y = MatMul (b, w)
        }}""",
        imports=', "my.domain": 1',
        w=np.ones((3, 2), np.float32),
    )
    report = amp.transpile(model, dtype=dtype, level="O2", verify=False)
    assert report.low_nodes > 0
    (node,) = support.nodes(report.program, "Twist")
    assert node.outputs[0].dtype == ir.DataType.FLOAT
    onnx.checker.check_model(report.program.to_onnx())


def test_quantised_operators_are_left_as_they_are():
    """Integer-quantised models."""
    model = parse(
        """(float[2,4] x) => (float[2,4] y) <float s = {0.05}, int8 z = {0}, float ws = {0.02}> {
            q = QuantizeLinear (x, s, z) m = QLinearMatMul (q, s, z, w8, ws, z, s, z) y = DequantizeLinear (m, s, z)
        }""",
        w8=np.clip(np.round(W / 0.02), -127, 127).astype(np.int8),
    )
    report = support.convert(model, X, limit=0.2)
    assert support.dtype_of(report.program, "m") == "INT8"
    assert support.dtype_of(report.program, "ws") == "FLOAT"
