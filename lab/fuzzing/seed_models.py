"""Small models, as ONNX text, that cover the forms a model can take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np

Weights = Mapping[str, tuple[int, ...] | np.ndarray | np.generic]

CONTRIB = ', "com.microsoft": 1'
LOCAL = ', "local": 1'
ML = ', "ai.onnx.ml": 3'


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeedText:
    """One small model.

    Attributes:
        graph: its main graph, as ONNX text, without a name.
        functions: model-local functions.
        opset, ir_version, imports: its header.
        weights: initializers: an array, or a shape to fill with random numbers.
        external: store the weights in a file of their own.
    """

    graph: str
    functions: str = ""
    opset: int = 18
    ir_version: int = 10
    imports: str = ""
    weights: Weights = dataclasses.field(default_factory=dict)
    external: bool = False


def _f(name: str, body: str, domain: str = "local", imports: str = "") -> str:
    return f'<domain: "{domain}", opset_import: ["": 18, "local": 1{imports}]> {name} {body}'


_BODY = "b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2, float[2,4] o)"
_FIVE = np.asarray(5, np.int64)
_IDS = np.asarray([0, 2, 1], np.int64)
_YES = np.asarray(True)
_X = "(float[2,4] x) => (float[2,4] y)"

SEED_TEXTS: dict[str, SeedText] = {
    # ---- plain networks ----
    "mlp": SeedText(
        graph="""(float[N,8] x) => (float[N,4] y) {
            [m1] a = MatMul (x, w1) [a1] b = Add (a, b1) [r1] c = Relu (b)
            [g1] d = Gemm <alpha = 0.5, transB = 1> (c, w2, b2) [s1] y = Softmax <axis = -1> (d) }""",
        weights={"w1": (8, 8), "b1": (8,), "w2": (4, 8), "b2": (4,)},
    ),
    "conv": SeedText(
        graph="""(float[1,3,8,8] x) => (float[1,4] y) {
            [c1] a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
            [n1] b = BatchNormalization <epsilon = 0.00001> (a, s, sh, mean, var)
            [r1] c = Relu (b) [p1] d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
            [p2] e = GlobalAveragePool (d) [f1] y = Flatten (e) }""",
        weights={"w": (4, 3, 3, 3), "bias": (4,), "s": (4,), "sh": (4,), "mean": (4,), "var": np.ones(4, np.float32)},
    ),
    "attention": SeedText(
        graph="""(float[B,S,8] x, float[B,1,S,S] mask) => (float[B,S,8] y) {
            q0 = MatMul (x, wq) k0 = MatMul (x, wk) v0 = MatMul (x, wv)
            q1 = Reshape (q0, heads) k1 = Reshape (k0, heads) v1 = Reshape (v0, heads)
            q = Transpose <perm = [0,2,1,3]> (q1) k = Transpose <perm = [0,2,3,1]> (k1)
            v = Transpose <perm = [0,2,1,3]> (v1)
            s0 = MatMul (q, k) s1 = Div (s0, root) s2 = Mul (mask, big) s3 = Add (s1, s2)
            p = Softmax <axis = -1> (s3) o = MatMul (p, v) o1 = Transpose <perm = [0,2,1,3]> (o)
            o2 = Reshape (o1, flat) y = MatMul (o2, wo) }""",
        weights={
            "wq": (8, 8),
            "wk": (8, 8),
            "wv": (8, 8),
            "wo": (8, 8),
            "heads": np.asarray([0, 0, 2, 4], np.int64),
            "flat": np.asarray([0, 0, 8], np.int64),
            "root": np.asarray(2.0, np.float32),
            "big": np.asarray(-3.4e38, np.float32),
        },
    ),
    "layer_norm_spelled_out": SeedText(
        graph="""(float[2,8] x) => (float[2,8] y) {
            m = ReduceMean <keepdims = 1> (x, axes) d = Sub (x, m) p = Pow (d, two)
            v = ReduceMean <keepdims = 1> (p, axes) e = Add (v, eps) s = Sqrt (e) n = Div (d, s)
            t = Mul (n, gamma) y = Add (t, beta) }""",
        weights={
            "axes": np.asarray([-1], np.int64),
            "two": np.asarray(2.0, np.float32),
            "eps": np.asarray(1e-12, np.float32),
            "gamma": (8,),
            "beta": (8,),
        },
    ),
    "normalizations": SeedText(
        graph="""(float[1,4,6] x) => (float[1,4,6] y, float[1,4,6] z) {
            a = LayerNormalization <axis = -1> (x, g6, b6) b = InstanceNormalization (a, g4, b4)
            y = LpNormalization <axis = 1> (b) z = GroupNormalization <num_groups = 2> (b, g4, b4) }""",
        opset=21,
        weights={"g6": (6,), "b6": (6,), "g4": (4,), "b4": (4,)},
    ),
    "resize": SeedText(
        graph="""(float[1,2,4,4] x) => (float[1,2,8,8] y, float[1,2,6,6] z, float[1,2,2,2] d) {
            [up] y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, roi, scales)
            [to] z = Resize <mode = "nearest"> (x, , , sizes) [down] d = Resize <mode = "cubic"> (x, , half) }""",
        weights={
            "roi": np.zeros(0, np.float32),
            "scales": np.asarray([1, 1, 2, 2], np.float32),
            "half": np.asarray([1, 1, 0.5, 0.5], np.float32),
            "sizes": np.asarray([1, 2, 6, 6], np.int64),
        },
    ),
    "transposed_conv": SeedText(
        graph="""(float[1,2,5,5] x) => (float y) {
            a = ConvTranspose <strides = [2,2]> (x, w) b = LRN <size = 3> (a)
            c = Pad <mode = "constant"> (b, pads, v) d = AveragePool <kernel_shape = [2,2]> (c) y = ReduceL2 (d) }""",
        weights={"w": (2, 3, 2, 2), "pads": np.asarray([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "v": np.float32(0.5)},
    ),
    "chain_without_names": SeedText(
        graph=_X
        + " { a = Sin (x) b = Cos (a) c = Tanh (b) d = Sigmoid (c) e = Erf (d) f = Elu (e) g = Softplus (f)"
        + " h = HardSigmoid (g) i = Abs (h) j = Sqrt (i) k = Exp (j) l = Log (k) m = Neg (l) y = Selu (m) }"
    ),
    "out_of_order": SeedText(graph=_X + " { y = Relu (b) b = MatMul (a, w) a = Neg (x) }", weights={"w": (4, 4)}),
    "shared_weight": SeedText(
        graph="(int64[S] ids) => (float[S,6] y) { e = Gather (table, ids) t = Transpose (table) y = MatMul (e, t) }",
        weights={"table": (6, 4)},
    ),
    "empty_dimensions": SeedText(
        graph="(float[0,4] x) => (float[0,4] y) { a = MatMul (x, w) y = Add (a, a) }", weights={"w": (4, 4)}
    ),
    # ---- shapes, indices ----
    "shapes": SeedText(
        graph="""(float[B,S,6] x) => (float[B,S,2,3] y, float[B,S] m) {
            s = Shape (x) b = Gather <axis = 0> (s, zero) c = Unsqueeze (b, zeros)
            t = Concat <axis = 0> (c, tail) y = Reshape (x, t)
            z = ReduceMax <keepdims = 0> (x, last) n = Size (x) r = ConstantOfShape <value = float[1] {0.5}> (s)
            q = Mul (x, r) u = ReduceSum <keepdims = 0> (q, last) m = Add (z, u) }""",
        weights={
            "zero": np.asarray(0, np.int64),
            "zeros": np.asarray([0], np.int64),
            "tail": np.asarray([-1, 2, 3], np.int64),
            "last": np.asarray([-1], np.int64),
        },
    ),
    "indexing": SeedText(
        graph="""(float[3,4] x) => (float[3,4] y, int64[K,2] nz, float[3,2] top, int64[3,2] at) {
            a = ScatterElements <axis = 0> (x, where, part) b = GatherND (a, nd) c = Slice (a, start, stop, axes)
            f, g = Split <axis = 1, num_outputs = 2> (a) h = Concat <axis = 1> (g, f) p = Greater (h, c)
            y = Where (p, h, x) nz0 = NonZero (p) nz = Transpose (nz0) top, at = TopK (y, k) }""",
        weights={
            "where": np.asarray([[0, 1, 2, 0]], np.int64),
            "part": (1, 4),
            "nd": np.asarray([[0, 1]], np.int64),
            "start": np.asarray([0], np.int64),
            "stop": np.asarray([1], np.int64),
            "axes": np.asarray([0], np.int64),
            "k": np.asarray([2], np.int64),
        },
    ),
    "einsum_and_friends": SeedText(
        graph="""(float[2,3,4] x) => (float[2,3,3] y, float[2,3,4] z) {
            [e] y = Einsum <equation = "bij,bkj->bik"> (x, x) t = Tile (x, reps) u = Clip (t, low, high)
            v = CumSum (u, axis) w = Expand (v, shape) r = Range (low, high, step) o = Mod <fmod = 1> (w, high)
            m = ReduceMean <keepdims = 1> (r) z = Add (o, m) }""",
        weights={
            "reps": np.asarray([1, 1, 1], np.int64),
            "low": np.float32(-1),
            "high": np.float32(6),
            "step": np.float32(0.5),
            "axis": np.asarray(0, np.int64),
            "shape": np.asarray([2, 3, 4], np.int64),
        },
    ),
    "detection": SeedText(
        graph="""(float[1,4,4] boxes, float[1,1,4] scores, float[1,2,6,6] x) => (int64[K,3] kept, float y) {
            kept = NonMaxSuppression (boxes, scores, top, iou)
            g = GridSample <mode = "linear"> (x, grid) r = RoiAlign <output_height = 2, output_width = 2> (x, rois, of)
            a = ReduceMax (g) b = ReduceMax (r) c = Add (a, b) y = Squeeze (c) }""",
        opset=20,
        weights={
            "top": np.asarray([3], np.int64),
            "iou": np.asarray([0.5], np.float32),
            "grid": (1, 3, 3, 2),
            "rois": np.asarray([[0, 0, 4, 4]], np.float32),
            "of": np.asarray([0], np.int64),
        },
    ),
    "signal": SeedText(
        graph="""(float[1,32] x) => (float y) {
            a = Unsqueeze (x, two) f = DFT <axis = 1> (a) p = ReduceSumSquare (f) h = HannWindow (n)
            q = ReduceSum (h) c = Mul (p, q) s = Squeeze (c) y = Identity (s) }""",
        weights={"two": np.asarray([2], np.int64), "n": np.asarray(8, np.int64)},
    ),
    # ---- recurrent ----
    "gru": SeedText(
        graph="""(float[3,1,4] x, float[1,1,5] h0) => (float[3,1,1,5] y, float[1,1,5] h) {
            [g] y, h = GRU <hidden_size = 5, linear_before_reset = 1> (x, w, r, b, , h0) }""",
        weights={"w": (1, 15, 4), "r": (1, 15, 5), "b": (1, 30)},
    ),
    "lstm": SeedText(
        graph="""(float[3,2,4] x) => (float[3,2,2,5] y, float[2,2,5] h) {
            [l] y, h, c = LSTM <hidden_size = 5, direction = "bidirectional"> (x, w, r, b, lens) }""",
        weights={"w": (2, 20, 4), "r": (2, 20, 5), "b": (2, 40), "lens": np.asarray([3, 2], np.int32)},
    ),
    "rnn": SeedText(
        graph='(float[3,1,4] x) => (float[1,1,5] h) { , h = RNN <hidden_size = 5, activations = ["Tanh"]> (x, w, r) }',
        weights={"w": (1, 5, 4), "r": (1, 5, 5)},
    ),
    # ---- control flow ----
    "if": SeedText(
        graph="""(float[2,4] x, bool c) => (float[2,4] y) {
            h = MatMul (x, w)
            t = If (c) <then_branch = t () => (float[2,4] a) { a0 = MatMul (h, w) a = Relu (a0) },
                        else_branch = e () => (float[2,4] b) { b = Sigmoid (h) }>
            y = Add (t, x) }""",
        weights={"w": (4, 4)},
    ),
    "nested_if": SeedText(
        graph="""(float[2,4] x, bool c) => (float[2,4] y) {
            y = If (c) <then_branch = t () => (float[2,4] a) {
                    a = If (c) <then_branch = t2 () => (float[2,4] p) { p = MatMul (x, w) },
                                else_branch = e2 () => (float[2,4] q) { q = Identity (x) }> },
                else_branch = e () => (float[2,4] b) { b = Constant <value = float[2,4] {1,2,3,4,5,6,7,8}> () }> }""",
        weights={"w": (4, 4)},
    ),
    "loop": SeedText(
        graph=f"""(float[2,4] x) => (float[2,4] y, float[5,2,4] o) {{
            y, o = Loop (five, yes, x) <body = {_BODY} {{
                k2 = Identity (k) m = MatMul (a, w) a2 = Tanh (m) o = Add (a2, x) }}> }}""",
        weights={"w": (4, 4), "five": _FIVE, "yes": _YES},
    ),
    "loop_with_if": SeedText(
        graph=f"""(float[2,4] x) => (float[2,4] y, float[5,2,4] o) {{
            y, o = Loop (five, , x) <body = {_BODY} {{
                k2 = Identity (k) z = Less (i, two)
                a2 = If (z) <then_branch = t () => (float[2,4] p) {{ p = MatMul (a, w) }},
                             else_branch = e () => (float[2,4] q) {{ q = Identity (a) }}>
                o = Relu (a2) }}> }}""",
        weights={"w": (4, 4), "five": _FIVE, "two": np.asarray(2, np.int64)},
    ),
    "scan": SeedText(
        graph="""(float[2,4] x, float[5,2,4] xs) => (float[2,4] y, float[5,2,4] ys) {
            y, ys = Scan <num_scan_inputs = 1, body = b (float[2,4] s, float[2,4] v) => (float[2,4] s2, float[2,4] o) {
                m = MatMul (s, w) s2 = Add (m, v) o = Relu (m) }> (x, xs) }""",
        weights={"w": (4, 4)},
    ),
    # ---- functions ----
    "function": SeedText(
        graph="(float[2,4] x) => (float[2,4] y) { a = local.f (x, w) [call] y = local.f (a, w) }",
        functions=_f("f", "(a, w) => (b) { m = MatMul (a, w) b = Relu (m) }"),
        imports=LOCAL,
        weights={"w": (4, 4)},
    ),
    "nested_functions": SeedText(
        graph=_X + " { a = local.outer <slope = 0.3> (x) y = Neg (a) }",
        functions='<domain: "local", opset_import: ["": 18, "local": 1]> outer <slope> (a) => (c)'
        " { b = local.inner (a) c = LeakyRelu <alpha: float = @slope> (b) } "
        + _f("inner", "(a) => (b) { t = Exp (a) one = Constant <value_float = 1.0> () s = Add (t, one) b = Log (s) }"),
        imports=LOCAL,
    ),
    "function_with_body": SeedText(
        graph="(float[2,4] x, bool c) => (float[2,4] y) { y = local.pick (c, x) }",
        functions=_f(
            "pick",
            "(c, a) => (b) { n = Neg (a) b = If (c) <then_branch = t () => (p) { p = Identity (a) },"
            " else_branch = e () => (q) { q = Relu (n) }> }",
        ),
        imports=LOCAL,
    ),
    # ---- weights ----
    "external": SeedText(
        graph="(float[N,8] x) => (float[N,8] y) { a = MatMul (x, w1) b = Relu (a) c = MatMul (b, w2) y = Add (c, b2) }",
        weights={"w1": (8, 8), "w2": (8, 8), "b2": (8,)},
        external=True,
    ),
    "constants": SeedText(
        graph="""(float[2,3] x) => (float[2,3] y, string[2] s) {
            a = Constant <value = float[3] {1e-9, 70000.0, -3.4e38}> () b = Constant <value_float = 0.1> ()
            c = Constant <value_floats = [0.5, 1.5, -2.5]> () d = Constant <value_int = 3> ()
            e = Constant <value_ints = [2, 3]> () s = Constant <value_strings = ["a", "b"]> ()
            f = Add (x, a) g = Mul (f, b) h = Mul (g, c) i = Reshape (h, e) j = Cast <to = 1> (d) y = Div (i, j) }"""
    ),
    "old_initializer_inputs": SeedText(
        graph="(float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul (x, w) y = Relu (a) }",
        opset=8,
        ir_version=3,
        weights={"w": (4, 4)},
    ),
    "overridable": SeedText(
        graph="(float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul (x, w) y = Relu (a) }",
        ir_version=8,
        weights={"w": (4, 4)},
    ),
    "odd_values": SeedText(
        graph="(float[2,4] x) => (float[2,4] y) {"
        " a = Mul (x, tiny) b = Add (a, mask) c = Where (no, b, x) y = Max (c, m) }",
        weights={
            "tiny": np.asarray([1e-40, 1e-8, 6e-8, 1.0], np.float32),
            "mask": np.asarray([np.nan, np.inf, -np.inf, 65520.0], np.float32),
            "no": np.asarray([False, False, True, False]),
            "m": np.float32(-1e30),
        },
    ),
    # ---- element types ----
    "float16": SeedText(
        graph="(float[2,4] x) => (float[2,4] y) {"
        " h = Cast <to = 10> (x) m = MatMul (h, w) r = Relu (m) y = Cast <to = 1> (r) }",
        weights={"w": np.full((4, 4), 0.1, np.float16)},
    ),
    "wholly_float16": SeedText(
        graph="(float16[2,4] x) => (float16[2,4] y) { m = MatMul (x, w) r = Relu (m) y = Add (r, x) }",
        weights={"w": np.full((4, 4), 0.3, np.float16)},
    ),
    "bfloat16": SeedText(
        graph="(bfloat16[2,4] x) => (float[2,4] y) { m = Mul (x, x) c = Cast <to = 1> (m) y = MatMul (c, w) }",
        opset=22,
        weights={"w": (4, 4)},
    ),
    "float64": SeedText(
        graph="""(float[2,4] x, double[4] d) => (double[2,4] y, float[2,4] z) {
            a = Cast <to = 11> (x) b = Mul (a, d) c = MatMul (b, w) y = CastLike (c, d)
            e = CastLike (y, x) z = Tanh (e) }""",
        weights={"w": np.full((4, 4), 0.7)},
    ),
    "small_types": SeedText(
        graph="""(float[2,4] x) => (float[2,4] y, uint8[2,4] u, bool[2,4] p) {
            a = Cast <to = 17> (x) n = Cast <to = 1> (a) b = Abs (n) u = Cast <to = 2> (b) p = Cast <to = 9> (u)
            c = Cast <to = 6> (x) d = BitShift <direction = "LEFT"> (u, u) e = Cast <to = 1> (d)
            f = Cast <to = 1> (c) g = Add (e, f) y = Mul (g, b) }""",
        opset=19,
    ),
    "qdq": SeedText(
        graph="""(float[1,3,6,6] x) => (float[1,4,4,4] y) {
            xq = QuantizeLinear (x, s, z) xd = DequantizeLinear (xq, s, z) wd = DequantizeLinear <axis = 0> (wq, ws, wz)
            c = Conv (xd, wd) q = QuantizeLinear (c, s, z) y = DequantizeLinear (q, s, z) }""",
        weights={
            "s": np.float32(0.02),
            "z": np.asarray(128, np.uint8),
            "wq": np.arange(108, dtype=np.int8).reshape(4, 3, 3, 3),
            "ws": np.full(4, 0.01, np.float32),
            "wz": np.zeros(4, np.int8),
        },
    ),
    "integer_products": SeedText(
        graph="""(float[2,4] x) => (float[2,4] y) {
            q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z) f = Cast <to = 1> (i) y = Mul (f, s) }""",
        weights={"w": np.arange(16, dtype=np.uint8).reshape(4, 4)},
    ),
    "int4": SeedText(
        graph="""(float[2,4] x) => (float[2,4] y) {
            d = DequantizeLinear (w, s) y = MatMul (x, d) }""",
        opset=21,
        weights={"w": np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4), "s": np.float32(0.125)},
    ),
    "strings": SeedText(
        graph="""(string[N] s, float[N] x) => (string[N] t, float[N] y) {
            t = StringConcat (s, s) e = Equal (t, s)
            y = Where (e, x, half) }""",
        opset=20,
        weights={"half": np.float32(0.5)},
    ),
    "sequences": SeedText(
        graph="""(float[2,4] x) => (float[4,4] y, seq(float[2,4]) q) {
            a = Relu (x) q = SequenceConstruct (a, x) b = SequenceAt (q, one) c = MatMul (b, w)
            r = SequenceInsert (q, c) s = SequenceErase (r, one) y = ConcatFromSequence <axis = 0> (s) }""",
        weights={"one": np.asarray(1, np.int64), "w": (4, 4)},
    ),
    "optionals": SeedText(
        graph="""(float[2,4] x) => (float[2,4] y, bool h) {
            o = Optional (x) h = OptionalHasElement (o) v = OptionalGetElement (o) m = MatMul (v, w) y = Relu (m) }""",
        weights={"w": (4, 4)},
    ),
    "trees": SeedText(
        graph="""(float[N,4] x) => (float[N,2] p, int64[N] label) {
            c = ai.onnx.ml.Scaler <offset = [0.1,0.1,0.1,0.1], scale = [2.0,2.0,2.0,2.0]> (x)
            r = ai.onnx.ml.LinearRegressor <coefficients = [1.0,2.0,3.0,4.0,4.0,3.0,2.0,1.0], targets = 2> (c)
            p = Softmax (r) label = ArgMax <axis = 1, keepdims = 0> (p) }""",
        imports=ML,
    ),
    # ---- versions ----
    "opset_9": SeedText(
        graph="""(float[1,2,4,4] x) => (float[1,2,8,8] y) {
            a = BatchNormalization (x, g, b, m, v) c = Upsample <mode = "nearest"> (a, scales)
            d = Dropout <ratio = 0.5> (c) e = Softmax <axis = 1> (d) y = Clip <min = 0.0, max = 6.0> (e) }""",
        opset=9,
        ir_version=4,
        weights={
            "g": (2,),
            "b": (2,),
            "m": (2,),
            "v": np.ones(2, np.float32),
            "scales": np.asarray([1, 1, 2, 2], np.float32),
        },
    ),
    "opset_24": SeedText(
        graph="""(float[1,3,8] x) => (float[1,3,8] y) {
            a = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x) b = RMSNormalization (a, g) c = Swish (b)
            m = MatMul (c, w) y = Gelu (m) }""",
        opset=24,
        ir_version=11,
        weights={"g": (8,), "w": (8, 8)},
    ),
    # ---- ONNX Runtime's operators ----
    "fused": SeedText(
        graph="""(float[1,3,8] x) => (float[1,3,8] y) {
            h = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w) g = com.microsoft.BiasGelu (h, b)
            s = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (g, x, gamma, beta)
            f = com.microsoft.FastGelu (s, b) q = com.microsoft.QuickGelu (f)
            y = com.microsoft.Attention <num_heads = 2> (q, wqkv, bqkv) }""",
        imports=CONTRIB,
        weights={"w": (8, 8), "b": (8,), "gamma": (8,), "beta": (8,), "wqkv": (8, 24), "bqkv": (24,)},
    ),
    "decoder": SeedText(
        graph="""(float[1,1,8] x, float[1,2,P,4] pk, float[1,2,P,4] pv, int32[1] lens, int32 total) =>
            (float[1,1,8] y, float[1,2,T,4] k2, float[1,2,T,4] v2) {
            n = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, g)
            q = MatMul (n, wq) k = MatMul (n, wk) v = MatMul (n, wv)
            a, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2, do_rotary = 1>
                (q, k, v, pk, pv, lens, total, cos, sin)
            o = MatMul (a, wq) s, , , r = com.microsoft.SkipSimplifiedLayerNormalization (x, o, g) y = Add (s, r) }""",
        opset=17,
        imports=CONTRIB,
        weights={"g": (8,), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "cos": (16, 2), "sin": (16, 2)},
    ),
    "default_domain_contrib": SeedText(
        graph="""(float[2,8] x) => (float[2,8] y) {
            a = SimplifiedLayerNormalization <epsilon = 0.00001> (x, g)
            m = MatMul (a, w) y = LayerNormalization <axis = -1> (m, g, b) }""",
        opset=13,
        weights={"g": (8,), "b": (8,), "w": (8, 8)},
    ),
    "quantised_blocks": SeedText(
        graph="""(float[1,32] x) => (float[1,4] y) {
            m = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (x, q, s) y = Relu (m) }""",
        imports=CONTRIB,
        weights={"q": np.arange(64, dtype=np.uint8).reshape(4, 1, 16), "s": (4,)},
    ),
    "unknown_domain": SeedText(
        graph="(float[2,4] x) => (float[2,4] y) { a = the.domain.Thing <k = 3> (x) b = MatMul (a, w) y = Relu (b) }",
        imports=', "the.domain": 2',
        weights={"w": (4, 4)},
    ),
}
"""Name -> model. Most load in ONNX Runtime as they are."""
