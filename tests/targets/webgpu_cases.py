"""Models of the kinds that users report: float16 sums overflow inside a kernel on WebGPU, though all results fit."""

import numpy as np

from tests.support import parse


def accumulator_case():
    """A product whose partial sums reach 130,000 and whose results are about 15,000."""
    rng, length = np.random.default_rng(0), 8192
    ones = int(length * 0.5305)
    signs = np.concatenate([np.ones((ones, 64)), -np.ones((length - ones, 64))])
    w = (signs + rng.normal(0, 0.01, (length, 64))).astype(np.float32)
    x = (30 + rng.normal(0, 0.1, (4, length))).astype(np.float32)
    return parse("(float[4,8192] x) => (float[4,64] y) { y = MatMul (x, w) }", w=w), {"x": x}


def written_out_norm():
    """A normalisation written out, of values whose squares do not fit: ONNX Runtime 31626."""
    x = np.random.default_rng(1).normal(0, 400, (2, 8, 64)).astype(np.float32)
    scale, shift = np.linspace(0.5, 1.5, 64, dtype=np.float32), np.linspace(-1, 1, 64, dtype=np.float32)
    model = parse(
        """(float[2,8,64] x) => (float[2,8,64] y) {
            mean = ReduceMean<axes=[-1]> (x)
            d = Sub (x, mean)
            power = Constant<value_float=2.0> ()
            square = Pow (d, power)
            variance = ReduceMean<axes=[-1]> (square)
            epsilon = Constant<value_float=1e-5> ()
            sum = Add (variance, epsilon)
            root = Sqrt (sum)
            normal = Div (d, root)
            scaled = Mul (normal, scale)
            y = Add (scaled, shift)
        }""",
        opset=17,
        scale=scale,
        shift=shift,
    )
    return model, {"x": x}


def pooled_gate():
    """A gate of channels by their means, of which each has a sum beyond float16: ONNX Runtime 29130."""
    rng = np.random.default_rng(2)
    x = rng.uniform(10, 40, (1, 16, 64, 64)).astype(np.float32)
    w = rng.normal(0, 0.05, (16, 16, 1, 1)).astype(np.float32)
    model = parse(
        """(float[1,16,64,64] x) => (float[1,16,64,64] y) {
            mean = ReduceMean<axes=[2, 3]> (x)
            z = Conv (mean, w)
            gate = HardSigmoid (z)
            y = Mul (x, gate)
        }""",
        opset=17,
        w=w,
    )
    return model, {"x": x}


def wide_stream():
    """A residual stream of a few large channels, whose products overflow inside a projection: ONNX Runtime 26732."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (1, 16, 512)).astype(np.float32)
    x[..., :64] = 900
    up, down = (rng.normal(0, 0.05, (512, 512)).astype(np.float32) for _ in range(2))
    up[:32] += 4
    up[32:64] -= 4
    model = parse(
        """(float[1,16,512] x) => (float[1,16,512] y) {
            a = MatMul (x, up)
            b = Tanh (a)
            c = MatMul (b, down)
            y = Add (c, x)
        }""",
        up=up,
        down=down,
    )
    return model, {"x": x}


def parted_convolution():
    """A 1x1 convolution of few pixels with large means, whose partial sums reach beyond float16."""
    rng, channels = np.random.default_rng(4), 4096
    signs = np.where(np.arange(channels) < channels * 0.6, 1.0, -1.0).reshape(1, channels, 1, 1)
    kernels = (signs + rng.normal(0, 0.05, (256, channels, 1, 1))).astype(np.float32)
    x = (30 + rng.normal(0, 5, (1, channels, 2, 2))).astype(np.float32)
    model = parse(
        f"(float[1,{channels},2,2] x) => (float[1,256,2,2] y) {{ y = Conv (x, w, b) }}",
        opset=17,
        w=kernels,
        b=rng.normal(0, 1, 256).astype(np.float32),
    )
    return model, {"x": x}


CASES = {
    "a product": accumulator_case,
    "a convolution": parted_convolution,
    "a normalisation": written_out_norm,
    "a pooled gate": pooled_gate,
    "a residual stream": wide_stream,
}
