"""Rows of the table of traps: single operators, of ONNX and of other domains."""

import numpy as np

from tests.support import array, parse
from tests.trap import Trap, W, X

OPERATORS = {
    "Resize with scales and roi": Trap(
        parse(
            """(float[1,2,4,4] x) => (float[1,2,6,6] y) <float[8] roi = {0,0,0,0,1,1,1,1}, float[4] scales =
                {1,1,1.5,1.5}> {
                h = Conv (x, w) r = Resize <mode = "linear"> (h, roi, scales) y = Relu (r)
            }""",
            w=array(2, 2, 1, 1),
        ),
        {"x": array(1, 2, 4, 4)},
    ),
    "Resize, tf_crop_and_resize reads roi": Trap(
        parse(
            """(float[1,1,4,4] x) => (float[1,1,3,3] y) <float[8] roi = {0,0,0.4,0.6,1,1,0.6,0.8}, float none,
                int64[4] sizes = {1,1,3,3}> {
                h = Conv (x, w) y = Resize <mode = "linear", coordinate_transformation_mode =
                    "tf_crop_and_resize"> (h, roi, , sizes)
            }""",
            w=array(1, 1, 1, 1),
        ),
        {"x": array(1, 1, 4, 4)},
    ),
    "Resize of opset 10": Trap(
        parse(
            """(float[1,2,4,4] x) => (float[1,2,8,8] y) <float[4] scales = {1,1,2,2}> { h = Conv (x, w) y = Resize
                (h, scales) }""",
            opset=10,
            w=array(2, 2, 1, 1),
        ),
        {"x": array(1, 2, 4, 4)},
    ),
    "QDQ below opset 19": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) <float s = {0.05}, int8 z = {3}> {
                q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
                qw = QuantizeLinear (w, s, z) dw = DequantizeLinear (qw, s, z) y = MatMul (d, dw)
            }""",
            opset=13,
            w=W,
        ),
        X,
    ),
    "QDQ at opset 19": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) <float s = {0.0625}, int8 z = {3}> {
                q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w)
            }""",
            opset=19,
            w=W,
        ),
        {"x": array(2, 4, low=-2.0, scale=2.0)},
        limit=0.1,
    ),
    "Min, Max, CumSum and TopK by today's schemas": Trap(
        parse(
            """(float[2,4] x) => (float[2,2] y, int64[2,2] i) <int64 axis = {1}, int64[1] k = {2}> {
                h = MatMul (x, w) a = Min (h, x) b = Max (a, w0) s = CumSum (b, axis) y, i = TopK (s, k)
            }""",
            w=W,
            w0=W[:2],
        ),
        {"x": np.array([[1, 2, 4, 8], [-1, 3, 9, 27]], np.float32)},
        low=("Min", "Max"),
    ),
    "NonMaxSuppression stays float32": Trap(
        parse(
            """(float[1,3,4] x) => (int64[N,3] y) <int64[1] most = {2}, float[1] iou = {0.5}, float[1] score = {0.0}> {
                b = MatMul (x, one) y = NonMaxSuppression (b, p, most, iou, score)
            }""",
            one=np.eye(4, dtype=np.float32),
            p=np.array([[[0.9, 0.75, 0.6]]], np.float32),
        ),
        {"x": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)},
        high=("NonMaxSuppression",),
    ),
    "contrib operator SkipLayerNormalization": Trap(
        parse(
            """(float[1,2,4] x) => (float[1,2,4] y) {
                h = MatMul (x, w) y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (h, x, gamma, beta)
            }""",
            imports=', "com.microsoft": 1',
            w=W,
            gamma=array(4, low=0.5),
            beta=array(4),
        ),
        {"x": array(1, 2, 4)},
    ),
    "contrib operator FusedMatMul": Trap(
        parse(
            "(float[2,4] x) => (float[2,4] y) { y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w) }",
            imports=', "com.microsoft": 1',
            w=W,
        ),
        X,
        low=("FusedMatMul",),
    ),
    "ai.onnx.ml": Trap(
        parse(
            """(float[2,4] x) => (float[2,4] y) {
                h = MatMul (x, w) s = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (h) y = MatMul (s, w)
            }""",
            imports=', "ai.onnx.ml": 3',
            w=W,
        ),
        X,
        high=("Scaler",),
    ),
    "BatchNormalization in training mode": Trap(
        parse(
            """(float[4,3] x) => (float[4,3] y) {
                y, m, v = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
            }""",
            scale=array(3, low=0.5),
            bias=array(3),
            mean=array(3, seed=4),
            var=array(3, seed=5, low=0.5),
        ),
        {"x": array(4, 3)},
    ),
    "ReduceMean over many values": Trap(
        parse(
            """(float[1,64,64,40] x) => (float[1,1,1,40] y) <int64[2] axes = {1,2}> { r = Relu (x) y = ReduceMean
                (r, axes) }"""
        ),
        {"x": array(1, 64, 64, 40, scale=20)},
    ),
    "GlobalLpPool, whose kernels end below opset 22, beside a Conv that needs 22 for bfloat16": Trap(
        parse("(float[1,2,4,4] x) => (float[1,2,1,1] y) { h = Conv (x, w) y = GlobalLpPool (h) }", w=array(2, 2, 1, 1)),
        {"x": array(1, 2, 4, 4)},
    ),
    "MaxRoiPool, likewise": Trap(
        parse(
            """(float[1,2,4,4] x) => (float[1,2,2,2] y) <float[1,5] roi = {0,0,0,3,3}> {
                h = Conv (x, w) y = MaxRoiPool <pooled_shape = [2,2]> (h, roi)
            }""",
            w=array(2, 2, 1, 1),
        ),
        {"x": array(1, 2, 4, 4)},
    ),
    "shape and index inputs": Trap(
        parse(
            """(float[2,4] x, int64[2] s, int64[3] i) => (float[3,R] y) {
                h = MatMul (x, w) r = Reshape (h, s) y = Gather <axis = 0> (r, i)
            }""",
            w=W,
        ),
        {**X, "s": np.array([4, 2]), "i": np.array([0, 3, 1])},
    ),
}
