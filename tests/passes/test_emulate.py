"""Emulation: the float32 program that rounds every low result, element by element as numpy does."""

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.emulate import EmulateLow
from amp_transpiler.passes.unify_constants import UnifyConstants
from tests import support
from tests.support import array, parse
from tests.trap_cases import TRAPS

TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
LOW_IMPORTS = ', "local": 1'
BITS = {"float16": {"{1.5}": "{15872}"}, "bfloat16": {"{1.5}": "{16320}"}}


def filled(text, dtype):
    """Put the type into ONNX text, which wants low numbers as their bits."""
    for number, bits in BITS[dtype].items():
        text = text.replace(number, bits)
    return text.replace("{T}", dtype)


def low_model(body, dtype, *functions, opset=22, extra="", outputs="float[N] y", **weights):
    """A model whose body, over `l`, computes in `dtype`; x comes in and y goes out as float32.

    `{T}` in the text stands for the type, `{low}` for its number.
    """
    number = onnx.helper.np_dtype_to_tensor_dtype(TYPES[dtype])
    text = filled(body, dtype)
    return parse(
        f"(float[N] x{extra}) => ({outputs}) {{ l = Cast <to = {number}> (x) {text} y = Cast <to = 1> (r) }}",
        *functions,
        opset=opset,
        imports=LOW_IMPORTS if functions else "",
        **{name: np.asarray(value, TYPES[dtype]) for name, value in weights.items()},
    )


def emulated(model, values, *, optimized=True, **feeds):
    program = amp.emulate(model)
    proto = program.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    low = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    for node in support.nodes(program):
        is_kept = node.op_type in ("Cast", "Constant")
        assert is_kept or not any(v.dtype in low for v in (*node.inputs, *node.outputs) if v is not None), node.name
    return support.run(proto, {"x": np.asarray(values, np.float32), **feeds}, optimized=optimized)


# ---- the examples of the design ----

EXAMPLES = {
    # name: (body over l, format, x, y)
    "a square overflows": ("s = Mul (l, l) r = Div (s, l)", "float16", 300.0, np.inf),
    "a square overflows in bfloat16 far later": ("s = Mul (l, l) r = Div (s, l)", "bfloat16", 300.0, 300.0),
    "a small summand is lost": ("a = Add (l, one) r = Sub (a, one)", "float16", 1e-4, 0.0),
    "a summand that is not": ("a = Add (l, one) r = Sub (a, one)", "float16", 1e-3, 1.0 / 1024),
    "a small summand is lost in bfloat16": ("a = Add (l, one) r = Sub (a, one)", "bfloat16", 3e-3, 0.0),
    "2049 is no float16": ("r = Identity (l)", "float16", 2049.0, 2048.0),
    "underflow": (
        "r = Mul (l, l)",
        "float16",
        1e-4,
        np.float32(np.float16(np.float16(1e-4) * np.float32(np.float16(1e-4)))),
    ),
    "underflow to zero": ("r = Mul (l, l)", "float16", 1e-5, 0.0),
    "an exponential overflows": ("r = Exp (l)", "float16", 12.0, np.inf),
    "infinity less infinity": ("s = Mul (l, l) r = Sub (s, s)", "float16", 300.0, np.nan),
    "bfloat16 has eight bits": ("r = Add (l, one)", "bfloat16", 256.0, 256.0),
}


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_roundings_show(name, optimized):
    """Optimised or not: ONNX Runtime must not take the pairs of casts out."""
    body, dtype, x, y = EXAMPLES[name]
    model = low_model(body, dtype, one=1.0)
    np.testing.assert_array_equal(emulated(model, [x], optimized=optimized)["y"], np.array([y], np.float32))


def test_onnx_runtime_s_own_cpu_drops_these_roundings():
    """Why there is an emulation at all: the CPU provider computes a float16 graph in float32."""
    body, dtype, x, _ = EXAMPLES["a square overflows"]
    assert np.isfinite(support.run(low_model(body, dtype), {"x": np.array([x], np.float32)}, optimized=True)["y"]).all()


# ---- a chain of operators, against numpy ----

F = np.float32
STEPS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
}
UNARY = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda a: np.maximum(a, F(0)),
    "Sqrt": np.sqrt,
    "Reciprocal": lambda a: F(1) / a,
    "Floor": np.floor,
    "Identity": lambda a: a,
}


@st.composite
def chains(draw):
    """A random graph of elementwise operators: each takes any of the results before it, or a constant."""
    count = draw(st.integers(2, 10))
    steps = []
    for index in range(count):
        names = [f"v{i}" for i in range(index)] or ["l"]
        operand = st.sampled_from([*names, "l", "k"])
        first = draw(st.sampled_from([names[-1], *names]))
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(STEPS))), (first, draw(operand))))
        else:
            steps.append((draw(st.sampled_from(sorted(UNARY))), (first,)))
    return steps


def by_numpy(steps, x, k, dtype):
    def rounded(values):
        return values.astype(TYPES[dtype]).astype(F)

    values = {"l": rounded(x), "k": rounded(k)}
    with np.errstate(all="ignore"):
        for index, (op, operands) in enumerate(steps):
            function = STEPS.get(op) or UNARY[op]
            if op == "Relu":  # the larger of 0 and -0 is either, and their reciprocals are far apart
                hypothesis.assume(not (np.signbit(values[operands[0]]) & (values[operands[0]] == 0)).any())
            values[f"v{index}"] = rounded(function(*(values[name] for name in operands)).astype(F))
    return values[f"v{len(steps) - 1}"]


NUMBERS = st.lists(st.floats(-4096, 4096, width=32), min_size=4, max_size=4)


@pytest.mark.parametrize("dtype", TYPES)
@hypothesis.settings(max_examples=60, deadline=None, database=None, derandomize=True)
@hypothesis.given(steps=chains(), x=NUMBERS, k=NUMBERS)
def test_every_operator_rounds_as_numpy_does_element_by_element(dtype, steps, x, k):
    x, k = np.array(x, F), np.array(k, F)
    hypothesis.assume((np.abs(x) > 1e-30).all() or (x == 0).any())  # float32 subnormals are flushed by some CPUs
    body = " ".join(f"v{i} = {op} ({', '.join(operands)})" for i, (op, operands) in enumerate(steps))
    with np.errstate(over="ignore"):
        model = low_model(f"{body} r = Identity (v{len(steps) - 1})", dtype, k=k)
    np.testing.assert_array_equal(emulated(model, x)["y"], by_numpy(steps, x, k, dtype))


# ---- through control flow and functions ----


def rounded(values, dtype):
    return np.asarray(values, F).astype(TYPES[dtype]).astype(F)


def step(a, dtype):
    """One step of every body below: (a * a + 1) / a, rounded after every operator."""
    with np.errstate(all="ignore"):
        return rounded(rounded(rounded(a * a, dtype) + F(1), dtype) / a, dtype)


STEP = "{to}s = Mul ({of}, {of}) {to}t = Add ({to}s, one) {to} = Div ({to}t, {of})"
SCALED = """<opset_import: ["": 22, "local": 1], domain: "local">
step (a, one) => (b) { s = Mul (a, a) t = Add (s, one) b = Div (t, a) }"""


def written(to, of):
    return STEP.replace("{to}", to).replace("{of}", of)


SCOPES = {
    # name: (body, functions, number of steps)
    "straight": (written("r", "l"), (), 1),
    "function": ("r = local.step (l, one)", (SCALED,), 1),
    "function, twice": ("h = local.step (l, one) r = local.step (h, one)", (SCALED,), 2),
    "If": (
        f"""r = If (yes) <then_branch = t () => ({{T}}[N] p) {{ {written("p", "l")} }},
                          else_branch = e () => ({{T}}[N] q) {{ q = Neg (l) }}>""",
        (),
        1,
    ),
    "Loop": (
        f"""r = Loop (three, yes, l) <body = b (int64 i, bool k, {{T}}[N] a) => (bool k2, {{T}}[N] a2) {{
            k2 = Identity (k) {written("a2", "a")}
        }}>""",
        (),
        3,
    ),
    "Scan": (
        f"""z = Unsqueeze (l, zeros) c = Concat <axis = 0> (z, z)
        r, o = Scan <num_scan_inputs = 1, body = b ({{T}}[N] a, {{T}}[N] u) => ({{T}}[N] a2, {{T}}[N] v) {{
            {written("a2", "a")} v = Neg (u)
        }}> (l, c)""",
        (),
        2,
    ),
    "If in Loop": (
        f"""r = Loop (three, yes, l) <body = b (int64 i, bool k, {{T}}[N] a) => (bool k2, {{T}}[N] a2) {{
            k2 = Identity (k)
            a2 = If (k) <then_branch = t () => ({{T}}[N] p) {{ {written("p", "a")} }},
                         else_branch = e () => ({{T}}[N] q) {{ q = Neg (a) }}>
        }}>""",
        (),
        3,
    ),
    "function in a body": (
        """r = If (yes) <then_branch = t () => ({T}[N] p) { p = local.step (l, one) },
                         else_branch = e () => ({T}[N] q) { q = Neg (l) }>""",
        (SCALED,),
        1,
    ),
    "sequence": (f"q = SequenceConstruct (l, l) g = SequenceAt (q, three0) {written('r', 'g')}", (), 1),
    "optional": (f"q = Optional (l) g = OptionalGetElement (q) {written('r', 'g')}", (), 1),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", SCOPES)
def test_roundings_in_every_scope(name, dtype):
    body, functions, count = SCOPES[name]
    model = low_model(body, dtype, *functions, one=1.0)
    for extra, value in {"yes": True, "three": 3, "three0": 1, "zeros": [0]}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), extra))
    x = np.array([1.37, -0.031, 200.3, 300.0, 2.0, 1e-3], F)
    expected = rounded(x, dtype)
    for _ in range(count):
        expected = step(expected, dtype)
    np.testing.assert_array_equal(emulated(model, x)["y"], expected)


# ---- what an operator of low type may be ----

RETYPED = {
    # body over l: every attribute that names the type
    "ConstantOfShape": "s = Shape (l) c = ConstantOfShape <value = {T}[1] {1.5}> (s) r = Add (l, c)",
    "CastLike": "n = Cast <to = 6> (l) c = CastLike (n, l) r = Add (l, c)",
    "CastLike of float32": "c = CastLike (x, l) r = Add (l, c)",
    "Cast of an integer": "n = Cast <to = 6> (l) c = Cast <to = {low}> (n) r = Add (l, c)",
    "Cast of float32": "c = Cast <to = {low}> (x) r = Mul (l, c)",
    "Constant": "c = Constant <value = {T}[1] {1.5}> () r = Add (l, c)",
    "EyeLike": "u = Unsqueeze (l, zeros) e = EyeLike <dtype = {low}> (u) s = Squeeze (e, zeros) r = Add (l, s)",
    "EyeLike as its input": "u = Unsqueeze (l, zeros) e = EyeLike (u) s = Squeeze (e, zeros) r = Add (l, s)",
    "SequenceEmpty": "q = SequenceEmpty <dtype = {low}> () p = SequenceInsert (q, l) r = ConcatFromSequence <axis "
    "= 0> (p)",
    "a comparison": "b = Greater (l, k) r = Where (b, l, k)",
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", RETYPED)
def test_attributes_that_name_the_low_type(name, dtype):
    number = onnx.helper.np_dtype_to_tensor_dtype(TYPES[dtype])
    model = low_model(RETYPED[name].replace("{low}", str(number)), dtype, k=0.5)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zeros"))
    x = np.array([1.37, 0.031, 2049.7], F)
    result = emulated(model, x)["y"]
    low = rounded(x, dtype)
    expected = {
        "ConstantOfShape": low + F(1.5),
        "CastLike": low + np.trunc(low),
        "CastLike of float32": low + low,
        "Cast of an integer": low + np.trunc(low),
        "Cast of float32": low * low,
        "Constant": low + F(1.5),
        "EyeLike": low + np.array([1, 0, 0], F),
        "EyeLike as its input": low + np.array([1, 0, 0], F),
        "SequenceEmpty": low,
        "a comparison": np.maximum(low, F(0.5)),
    }[name]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, rounded(expected, dtype))


IO = {
    "low input and output": "({T}[2] x) => ({T}[2] y) { y = Neg (x) }",
    "a low input that is an output": "({T}[2] x) => ({T}[2] x, {T}[2] y) { y = Neg (x) }",
    "a low output that is read": "({T}[2] x) => ({T}[2] y, {T}[2] z) { y = Neg (x) z = Mul (y, x) }",
    "a low initializer as output": "({T}[2] x) => ({T}[2] y, {T}[1] w) <{T}[1] w = {1.5}> { y = Mul (x, w) }",
    "a low Constant as output": "({T}[2] x) => ({T}[2] y, {T}[1] c) { c = Constant <value = {T}[1] {1.5}> () y = "
    "Mul (x, c) }",
    "a low initializer as input": "({T}[2] x, {T}[1] w) => ({T}[2] y) <{T}[1] w = {1.5}> { y = Mul (x, w) }",
    "an exact operator's result as output": "({T}[2] x) => ({T}[2] y) { h = Mul (x, x) y = Transpose (h) }",
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", IO)
def test_inputs_and_outputs_keep_names_and_types(name, dtype):
    model = parse(filled(IO[name], dtype))
    program = amp.emulate(model)
    proto = program.to_onnx()
    for before, after in ((model.graph.input, proto.graph.input), (model.graph.output, proto.graph.output)):
        assert [(v.name, v.type.tensor_type.elem_type) for v in before] == [
            (v.name, v.type.tensor_type.elem_type) for v in after
        ]
    onnx.checker.check_model(proto, full_check=True)
    x = np.array([1.5, -2.25])
    outputs = amp.Session(program, amp.CPUPlace()).run({"x": x.astype(TYPES[dtype])})
    assert all(value.dtype == TYPES[dtype] for value in outputs)
    y = {
        "an exact operator's result as output": x * x,
        "a low initializer as output": x * 1.5,
        "a low Constant as output": x * 1.5,
        "a low initializer as input": x * 1.5,
    }.get(name, -x)
    index = [value.name for value in proto.graph.output].index("y")
    np.testing.assert_array_equal(outputs[index].astype(np.float64), y)


EDITS = {
    # name: (graph, casts left as (input, type), edits)
    "nothing low": ("(float[2] x) => (float[2] y) { y = Neg (x) }", [], 0),
    "a result that is read": (
        "(float16[2] x) => (float[2] y) { h = Mul (x, x) y = Cast <to = 1> (h) }",
        [("x", "FLOAT"), ("h", "FLOAT16"), ("h__amp_fp16", "FLOAT"), ("h__amp_fp16__amp_rounded", "FLOAT")],
        2,
    ),
    "a result that nothing reads": ("(float16[2] x) => (float16[2] x) { h = Mul (x, x) }", [("x", "FLOAT")], 2),
    "an exact result": (
        "(float16[2] x) => (float[2] y) { h = Neg (x) y = Cast <to = 1> (h) }",
        [("x", "FLOAT"), ("h", "FLOAT")],
        2,
    ),
    "an exact result that leaves": (
        "(float16[2] x) => (float16[2] y) { y = Neg (x) }",
        [("x", "FLOAT"), ("y__amp_before_rounding", "FLOAT16")],
        2,
    ),
    "a result that leaves and is read": (
        "(float16[2] x) => (float16[2] y, float16[2] z) { y = Mul (x, x) z = Neg (y) }",
        [
            ("x", "FLOAT"),
            ("y", "FLOAT"),
            ("y__amp_before_rounding", "FLOAT16"),
            ("z__amp_before_rounding", "FLOAT16"),
        ],
        3,
    ),
    "the name of an exact operator in another domain": (
        "(float16[2] x) => (float[2] y) <float16[2] h> { h = my.domain.Neg (x) y = Cast <to = 1> (h) }",
        [("x", "FLOAT"), ("h", "FLOAT16"), ("h__amp_fp16", "FLOAT"), ("h__amp_fp16__amp_rounded", "FLOAT")],
        2,
    ),
    "a constant that is read": (
        """(float16[1] x) => (float[1] y) { c = Constant <value = float16[1] {15872}> () n = Neg (c)
            y = Cast <to = 1> (n) }""",
        [("n", "FLOAT")],
        2,
    ),
    "a constant that leaves": (
        "(float[1] x) => (float16[1] c) { c = Constant <value = float16[1] {15872}> () }",
        [],
        0,
    ),
    "an initializer": (
        "(float16[1] x) => (float16[1] y) <float16[1] w = {15872}> { y = Mul (x, w) }",
        [
            ("x", "FLOAT"),
            ("y__amp_before_rounding", "FLOAT16"),
        ],
        3,
    ),
    "an initializer that leaves": (
        "(float[1] x) => (float16[1] w, float[1] y) <float16[1] w = {15872}> { n = Neg (w) y = Cast <to = 1> (n) }",
        [("w", "FLOAT"), ("n", "FLOAT")],
        2,
    ),
    "an initializer that is an input": (
        "(float[1] x, float16[1] w) => (float[1] y) <float16[1] w = {15872}> { n = Neg (w) y = Cast <to = 1> (n) }",
        [("w", "FLOAT"), ("n", "FLOAT")],
        2,
    ),
    "CastLike": (
        "(float[1] x, float16[1] l) => (float[1] y) { c = CastLike (x, l) y = Cast <to = 1> (c) }",
        [("x", "FLOAT16"), ("c", "FLOAT"), ("c__amp_fp32", "FLOAT")],
        2,
    ),
    "CastLike of integers": ("(float[1] x, int64[1] l) => (int64[1] y) { y = CastLike (x, l) }", [], 0),
    "a sequence": (
        """(float16[1] x) => (float[1] y) { q = SequenceConstruct (x, x) g = SequenceAt (q, zero) n = Neg (g)
            y = Cast <to = 1> (n) }""",
        [("x", "FLOAT"), ("g", "FLOAT16"), ("g__amp_fp16", "FLOAT"), ("n", "FLOAT")],
        4,
    ),
    "a state of a Loop": (
        """(float16[1] x) => (float[1] y) { s = Loop (zero, , x) <body = b (int64 i, bool c, float16[1] v) =>
            (bool d, float16[1] w) { d = Identity (c) w = Neg (v) }> y = Cast <to = 1> (s) }""",
        [("x", "FLOAT"), ("s", "FLOAT16"), ("s__amp_fp16", "FLOAT"), ("s__amp_fp16__amp_rounded", "FLOAT")],
        4,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_is_edited(name):
    text, casts, count = EDITS[name]
    model = ir.from_proto(parse(text, imports=', "my.domain": 1', zero=np.int64(0)))
    UnifyConstants()(model)
    propagate_types(model)
    before = ir.to_proto(model)
    result = EmulateLow()(model)
    assert result.modified == (result.count > 0) == (ir.to_proto(model) != before)
    assert sorted((source, target) for source, _, target in support.casts(model)) == sorted(casts)
    assert result.count == count
    verify(model, "emulating")


# ---- the program given ----


@pytest.mark.parametrize("name", [name for name, trap in TRAPS.items() if not trap.random])
def test_emulating_an_fp32_program_changes_no_number(name):
    """Low casts of the user's own aside, which round by themselves."""
    trap = TRAPS[name]
    support.assert_close(support.run(trap.model, trap.feeds), support.run_emulated(trap.model, trap.feeds), 2e-3)


def test_the_program_given_is_not_changed():
    program = amp.load(low_model("s = Mul (l, l) r = Div (s, l)", "float16"))
    before = program.to_onnx().SerializeToString(deterministic=True)
    result = amp.emulate(program)
    assert program.to_onnx().SerializeToString(deterministic=True) == before
    assert result is not program


def test_emulating_twice_is_emulating_once():
    model = low_model("s = Mul (l, l) r = Div (s, l)", "float16")
    once, twice = amp.emulate(model), amp.emulate(amp.emulate(model))
    x = np.array([1.37, 300.0], F)
    np.testing.assert_array_equal(support.run(once, {"x": x})["y"], support.run(twice, {"x": x})["y"])


def test_every_form_of_program_is_taken(tmp_path):
    model = low_model("s = Mul (l, l) r = Div (s, l)", "float16")
    onnx.save(model, tmp_path / "low.onnx")
    x = {"x": np.array([1.37, 300.0], F)}
    expected = support.run(amp.emulate(model), x)["y"]
    for form in (ir.from_proto(model), amp.load(model), tmp_path / "low.onnx", str(tmp_path / "low.onnx")):
        np.testing.assert_array_equal(support.run(amp.emulate(form), x)["y"], expected)


def test_large_low_weights_are_widened_when_they_are_read():
    weights = array(200, 200).astype(np.float16)
    model = parse("(float16[2,200] x) => (float16[2,200] y) { y = MatMul (x, w) }", w=weights)
    tensor = amp.emulate(model).model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(tensor.numpy(), weights.astype(np.float32))
