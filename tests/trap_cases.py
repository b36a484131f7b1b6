"""Graphs that break converters, one row a trap: its name, a model, feeds that show it.

They were found in today's converters, in bug reports about them, and in onnx-ir.
"""

import numpy as np

from tests.support import array, chain, parse
from tests.trap import Trap, W, X
from tests.trap_operators import OPERATORS

YES, NO = {"x": array(2, 4), "c": np.array(True)}, {"x": array(2, 4), "c": np.array(False)}
LOCAL = '<opset_import: ["": 18, "local": 1], domain: "local">'


def _if(then, otherwise, *, before="h = MatMul (x, w)", opset=18, **weights):
    graph = f"""(float[2,4] x, bool c) => (float[A,B] y) {{
        [product] {before} [branch] y = If (c) <
            then_branch = t () => (float[A,B] p) {{ {then} }}, else_branch = e () => (float[A,B] q) {{ {otherwise} }}
        >
    }}"""
    return parse(graph, opset=opset, w=W, **weights)


def _loop(body, states, results, *, before="", after="", opset=18, trips=3, **weights):
    """A Loop over `states` ("float[2,4] a" -> initial "x")."""
    names = ", ".join(result.split()[-1] for result in results.split(", "))
    graph = f"""(float[2,4] x) => ({results}) <int64 trips = {{{trips}}}, bool yes = {{1}}> {{
        {before} {names} = Loop (trips, yes, {", ".join(states.values())}) <
            body = b (int64 i, bool k, {", ".join(states)}) => (bool k2, {body[0]}) {{ k2 = Identity (k) {body[1]} }}
        > {after}
    }}"""
    return parse(graph, opset=opset, w=W, **weights)


TYPED_BY_ATTRIBUTE = {
    "Cast(to=float) behind an integer": Trap(
        chain("MatMul ({}, w)", "Cast <to=6> ({})", "Cast <to=1> ({})", "MatMul ({}, w)", w=W),
        {"x": array(2, 4, scale=4)},
    ),
    "Cast(to=float) of a float": Trap(chain("MatMul ({}, w)", "Cast <to=1> ({})", "Relu ({})", w=W), X),
    "ConstantOfShape's default value": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) s = Shape (h) z = ConstantOfShape (s) y = Add
                (h, z) }""",
            w=W,
        ),
        X,
        low=("ConstantOfShape", "Add"),
    ),
    "ConstantOfShape with a float value": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) s = Shape (h) z = ConstantOfShape <value = float[1] {0.5}> (s) y = Add (h, z)
            }""",
            w=W,
        ),
        X,
        low=("ConstantOfShape", "Add"),
    ),
    "RandomNormal, RandomUniform": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                n = RandomNormal <shape = [2,4]> () u = RandomUniform <shape = [2,4], dtype = 1> ()
                h = MatMul (x, w) a = Add (h, n) y = Mul (a, u)
            }""",
            w=W,
        ),
        X,
        random=True,
        no_cpu_bfloat16=True,
    ),
    "RandomNormalLike, RandomUniformLike, Bernoulli": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) n = RandomNormalLike (h) u = RandomUniformLike <dtype = 1> (h)
                p = Sigmoid (h) b = Bernoulli <dtype = 1> (p) a = Add (n, u) d = Add (b, h) y = Add (a, d)
            }""",
            w=W,
        ),
        X,
        random=True,
        no_cpu_bfloat16=True,
    ),
    "Multinomial": Trap(
        parse(
            """(float[2,4,1,1] x) => (int32[2,3] y) {
                h = Conv (x, v) f = Flatten (h) y = Multinomial <sample_size = 3> (f)
            }""",
            v=W.reshape(4, 4, 1, 1),
        ),
        {"x": array(2, 4, 1, 1)},
        random=True,
    ),
    "EyeLike with and without dtype": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) e = EyeLike (h) f = EyeLike <dtype = 1, k = 1> (h) a = Add (h, e) y = Add (a, f)
            }""",
            w=W,
        ),
        X,
    ),
    "CastLike": Trap(
        parse(
            """(float[2,4] x, int64[2,4] n) => (float[2,4] y) {
                h = MatMul (x, w) f = CastLike (n, h) y = Add (h, f)
            }""",
            w=W,
        ),
        {**X, "n": np.arange(8).reshape(2, 4)},
    ),
    "Constant value_float and value_floats": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                s = Constant <value_float = 0.5> () v = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
                h = MatMul (x, w) a = Mul (h, s) y = Add (a, v)
            }""",
            w=W,
        ),
        X,
        low=("MatMul", "Mul", "Add"),
    ),
    "windows and MelWeightMatrix": Trap(
        parse(
            """(float[2,8] x) => (float[2,8] y, float[5,6] m) <int64 size = {8}, int64 bins = {6}, int64 dft = {8},
                int64 rate = {8000}, float low = {0.0}, float high = {4000.0}> {
                h = HannWindow (size) g = HammingWindow <output_datatype = 1> (size) b = BlackmanWindow (size)
                hg = Add (h, g) hgb = Add (hg, b) p = MatMul (x, w) y = Mul (p, hgb)
                m = MelWeightMatrix (bins, dft, rate, low, high)
            }""",
            w=array(8, 8),
        ),
        {"x": array(2, 8)},
    ),
    "LayerNormalization with Mean and InvStdDev": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y, float[2,1] mean, float[2,1] inverse) {
                h = MatMul (x, w) y, mean, inverse = LayerNormalization <axis = -1> (h, scale, bias)
            }""",
            w=W,
            scale=array(4, low=0.5),
            bias=array(4, seed=2),
        ),
        X,
    ),
    "BitCast reinterprets bits": Trap(
        parse(
            "(float[2,4] x) => (int32[2,4] y, float[2,4] z) { y = BitCast <to = 6> (x) z = MatMul (x, w) }",
            opset=26,
            w=W,
        ),
        X,
        high=("BitCast",),
    ),
    "TfIdfVectorizer": Trap(
        parse(
            """(int64[6] t) => (float[4] y) {
                f = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF",
                    ngram_counts = [0], ngram_indexes = [0,1,2,3], pool_int64s = [2,3,5,7]> (t)
                y = MatMul (f, w)
            }""",
            w=W,
        ),
        {"t": np.array([2, 3, 3, 7, 9, 2])},
        high=("TfIdfVectorizer",),
    ),
    "DynamicQuantizeLinear": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) q, s, z = DynamicQuantizeLinear (h) y = DequantizeLinear (q, s, z)
            }""",
            w=W,
        ),
        X,
        high=("DynamicQuantizeLinear",),
    ),
    "GroupNormalization, a function operator": Trap(
        parse(
            """(float[2,4,4,4] x) => (float[2,4,4,4] y) {
                h = Conv (x, v) y = GroupNormalization <num_groups = 2> (h, scale, bias)
            }""",
            opset=21,
            v=W.reshape(4, 4, 1, 1),
            scale=array(4, low=0.5),
            bias=array(4),
        ),
        {"x": array(2, 4, 4, 4)},
    ),
    "MeanVarianceNormalization, a function operator": Trap(
        parse("(float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization (x) }", opset=12),
        {"x": array(2, 3, 4, 4)},
    ),
    "SequenceEmpty's dtype": Trap(
        parse(
            """(float[2,4] x) => (float[4,4] y) {
                h = MatMul (x, w) s = SequenceEmpty <dtype = 1> () t = SequenceInsert (s, h) u = SequenceInsert (t, x)
                y = ConcatFromSequence <axis = 0> (u)
            }""",
            w=W,
        ),
        X,
    ),
}

CONSTANTS = {
    "shared initializer, low and high reader": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) t = Mul (w, k) r = ReduceSum <keepdims = 0> (t,
                rows) y = Add (h, r) }""",
            w=W,
            k=np.float32(1.0),
            rows=np.array([0]),
        ),
        X,
    ),
    "initializer that is an output, too": Trap(
        parse("(float[2,4] x) => (float[2,4] y, float[4,4] w) { y = MatMul (x, w) }", w=W), X
    ),
    "initializer that is an input, IR 3": Trap(
        parse("(float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }", opset=8, ir_version=3, w=W), X
    ),
    "initializer that is an input, IR 8": Trap(
        parse("(float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }", ir_version=8, w=W), X
    ),
    "weights between 1e4 and 65504": Trap(
        chain("MatMul ({}, w)", "Mul ({}, k)", w=W * 30000, k=np.float32(2e-5)), X, low=("MatMul",)
    ),
    "weights beyond 65504": Trap(chain("MatMul ({}, w)", "Relu ({})", w=W * 1e6), {"x": array(2, 4, scale=1e-3)}),
    "weights that flush to zero": Trap(chain("MatMul ({}, w)", "Relu ({})", w=W * 1e-9), {"x": array(2, 4, scale=1e7)}),
    "tiny negative weights keep their sign": Trap(
        chain("MatMul ({}, w)", "Add ({}, b)", w=W, b=np.full(4, -1e-7, np.float32)), X
    ),
    "a mask of -1e9": Trap(
        parse(
            """(float[2,4] x, bool[2,4] m) => (float[2,4] y) <float off = {-1.0e9}> {
                h = MatMul (x, w) s = Where (m, h, off) p = Softmax (s) y = MatMul (p, w)
            }""",
            w=W,
        ),
        {**X, "m": np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool)},
    ),
    "a mask of -3.4e38, added": Trap(
        parse(
            """(float[2,4] x, float[2,4] m) => (float[2,4] y) <float one = {1.0}, float off =
                {-3.4028234663852886e+38}> {
                n = Sub (one, m) a = Mul (n, off) h = MatMul (x, w) s = Add (h, a) p = Softmax (s) y = MatMul (p, w)
            }""",
            w=W,
        ),
        {**X, "m": np.array([[1, 1, 0, 0], [0, 1, 1, 1]], np.float32)},
    ),
    "weights in Constant nodes": Trap(
        parse(
            """(float[2,2] x) => (float[2,2] y) {
                w = Constant <value = float[2,2] {0.5, -1.0, 2.0, 0.25}> () h = MatMul (x, w) e = Exp (w) y = Mul (h, e)
            }"""
        ),
        {"x": array(2, 2)},
    ),
    "empty tensors": Trap(
        parse(
            "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) y = Concat <axis = 0> (h, none) }",
            w=W,
            none=np.zeros((0, 4), np.float32),
        ),
        X,
    ),
}

GRAPH = {
    "unnamed nodes": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) e = Exp (h) l = Exp (h) a = Add (e, l) y =
                MatMul (a, w) }""",
            w=W,
        ),
        X,
    ),
    "a cast that is read and is an output": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y, int32[2,4] n, float[2,4] z) {
                h = MatMul (x, w) n = Cast <to = 6> (h) y = Relu (h) f = Cast <to = 1> (n) z = MatMul (f, w)
            }""",
            w=W,
        ),
        {"x": array(2, 4, scale=5)},
        limit=0.3,
    ),
    "float -> int64 -> float truncates": Trap(
        parse(
            "(float[2,4] x) => (float[2,4] y) { n = Cast <to = 7> (x) f = Cast <to = 1> (n) y = MatMul (f, w) }", w=W
        ),
        {"x": np.array([[0.4, 1.6, -2.7, 3.2], [-0.9, 0.2, 5.5, -7.8]], np.float32)},
    ),
    "an output that other nodes read": Trap(
        parse(
            "(float[2,4] x) => (float[2,4] y, float[2,4] z) { y = MatMul (x, w) a = Relu (y) z = MatMul (a, w) }", w=W
        ),
        X,
    ),
    "graph input as output": Trap(
        parse("(float[2,4] x) => (float[2,4] x, float[2,4] y) { y = MatMul (x, w) }", w=W), X
    ),
    "one value as two outputs": Trap(
        parse("(float[2,4] x) => (float[2,4] y, float[2,4] y) { y = MatMul (x, w) }", w=W), X
    ),
    "PaddleOCR: wrong declared shape of an intermediate": Trap(
        parse("(float[2,4] x) => (float[2,4] y) <float[7,9] h> { h = MatMul (x, w) y = Relu (h) }", w=W), X
    ),
    "declared types of intermediates": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) <float[2,4] h, float[2,4] a> { h = MatMul (x, w) a = Relu (h) y =
                Exp (a) }""",
            w=W,
        ),
        X,
    ),
    "nodes listed out of order": Trap(
        parse("(float[2,4] x) => (float[2,4] y) { y = Relu (h) h = MatMul (x, w) }", w=W), X
    ),
    "a Cast read by a Cast and by a Relu": Trap(
        parse(
            """(float16[2,4] x) => (float16[2,4] y, float[2,4] z) {
                f = Cast <to = 1> (x) y = Cast <to = 10> (f) z = Relu (f)
            }"""
        ),
        {"x": array(2, 4).astype(np.float16)},
    ),
    "a model that is partly float16": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                a = Cast <to = 10> (x) h = MatMul (a, v) f = Cast <to = 1> (h) g = MatMul (f, w) y = Relu (g)
            }""",
            w=W,
            v=W.astype(np.float16),
        ),
        X,
    ),
    "Olive 1287: float64 parts": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y, double[2,4] z) {
                h = MatMul (x, w) d = Cast <to = 11> (h) z = Einsum <equation = "ij,jk->ik"> (d, v) f = Cast <to
                    = 1> (z)
                y = MatMul (f, w)
            }""",
            w=W,
            v=W.astype(np.float64),
        ),
        X,
        high=("Einsum",),
    ),
    "residual with casts down and up": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) e = Exp (h) a = Add (h, e) g = MatMul (a, w) y
                = Add (g, e) }""",
            w=W,
        ),
        X,
    ),
}

SCOPES = {
    "black operator in an If body": Trap(_if("e = Exp (h) p = MatMul (e, w)", "q = Relu (h)"), YES),
    "black operator in the other branch": Trap(_if("e = Exp (h) p = MatMul (e, w)", "q = Relu (h)"), NO),
    "branches that differ in precision": Trap(_if("p = Identity (x)", "q = MatMul (h, w)"), NO),
    "captured values": Trap(_if("p = Add (h, x)", "q = Sub (x, h)"), YES),
    "duplicate initializer and value names in branches": Trap(
        parse(
            """(float[2,4] x, bool c) => (float[A,B] y) {
                y = If (c) <
                    then_branch = t () => (float[A,B] r) <float[4] k = {1,2,3,4}> { h = MatMul (x, w) r = Add (h, k) },
                    else_branch = e () => (float[A,B] r) <float[4] k = {4,3,2,1}> { h = MatMul (x, w) r = Mul (h, k) }
                >
            }""",
            w=W,
        ),
        NO,
    ),
    "nested If": Trap(
        _if(
            """[inner] p = If (c) <
                then_branch = t2 () => (float[A,B] p2) { e2 = Exp (h) p2 = MatMul (e2, w) },
                else_branch = e2b () => (float[A,B] q2) { q2 = Add (h, x) }
            >""",
            "q = Relu (h)",
        ),
        YES,
    ),
    "float state of a Loop": Trap(
        _loop(("float[2,4] a2", "a2 = MatMul (a, w)"), {"float[2,4] a": "x"}, "float[2,4] y"), X
    ),
    "state and scan outputs of a Loop, captures": Trap(
        _loop(
            ("float[2,4] a2, float[2,4] s", "m = MatMul (a, w) e = Tanh (m) a2 = Add (e, h) s = Relu (m)"),
            {"float[2,4] a": "x"},
            "float[2,4] y, float[N,2,4] scans",
            before="h = MatMul (x, w)",
        ),
        X,
    ),
    "black operator in a Loop body": Trap(
        _loop(("float[2,4] a2", "e = Exp (a) t = Tanh (e) a2 = MatMul (t, w)"), {"float[2,4] a": "x"}, "float[2,4] y"),
        X,
    ),
    "a Loop that swaps its states": Trap(
        _loop(
            ("float[2,4] a2, float[2,4] b2", "b2 = MatMul (a, w) a2 = Identity (b)"),
            {"float[2,4] a": "x", "float[2,4] b": "x"},
            "float[2,4] y, float[2,4] z",
        ),
        X,
    ),
    "Scan": Trap(
        parse(
            """(float[2,4] x, float[5,2,4] xs) => (float[2,4] y, float[5,2,4] ys) {
                y, ys = Scan <num_scan_inputs = 1, body = b (float[2,4] s, float[2,4] v) => (float[2,4] s2,
                    float[2,4] o) {
                    m = MatMul (s, w) s2 = Add (m, v) o = Relu (m)
                }> (x, xs)
            }""",
            w=W,
        ),
        {**X, "xs": array(5, 2, 4)},
    ),
    "If inside Loop": Trap(
        _loop(
            (
                "float[2,4] a2",
                """m = MatMul (a, w) a2 = If (k) <
                    then_branch = t () => (float[2,4] p) { p = Relu (m) },
                    else_branch = e () => (float[2,4] q) { q = Exp (m) }
                >""",
            ),
            {"float[2,4] a": "x"},
            "float[2,4] y",
        ),
        X,
    ),
    "sequences": Trap(
        parse(
            """(float[2,4] x) => (float[4,4] y, float[2,4] z) <int64 one = {1}> {
                h = MatMul (x, w) s = SequenceConstruct (h, x) y = ConcatFromSequence <axis = 0> (s)
                a = SequenceAt (s, one) z = MatMul (a, w)
            }""",
            w=W,
        ),
        X,
    ),
    "sequence as output": Trap(
        parse("(float[2,4] x) => (seq(float[2,4]) y) { h = MatMul (x, w) y = SequenceConstruct (h, x) }", w=W), X
    ),
    "optionals": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) o = Optional (h) g = OptionalGetElement (o) y = MatMul (g, w)
            }""",
            w=W,
        ),
        X,
    ),
    "model-local function": Trap(
        parse(
            "(float[2,4] x) => (float[2,4] y) { h = local.block (x, w) y = local.block (h, w) }",
            f"{LOCAL} block (a, v) => (r) {{ m = MatMul (a, v) e = Exp (m) r = Tanh (e) }}",
            imports=', "local": 1',
            w=W,
        ),
        X,
    ),
    "function with an attribute parameter, called in a body": Trap(
        parse(
            """(float[2,4] x, bool c) => (float[A,B] y) {
                y = If (c) <
                    then_branch = t () => (float[A,B] p) { p = local.leak <alpha = 0.5> (x, w) },
                    else_branch = e () => (float[A,B] q) { q = local.leak <alpha = 0.25> (x, w) }
                >
            }""",
            f"{LOCAL} leak <alpha> (a, v) => (r) {{ m = MatMul (a, v) r = LeakyRelu <alpha : float = @alpha> (m) }}",
            imports=', "local": 1',
            w=W,
        ),
        YES,
    ),
}

TRAPS = {**TYPED_BY_ATTRIBUTE, **CONSTANTS, **GRAPH, **SCOPES, **OPERATORS}
