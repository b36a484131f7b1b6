"""Target webgpu: what its table says, sums in float16 inside its kernels, and the targets that nobody has measured.

`test_webgpu_oracle.py` holds the same models against the provider itself.
"""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.targets import CPU, TARGETS, WEBGPU, find_target
from amp_transpiler.targets.arithmetic import WEBGPU_TABLE, arithmetic_of
from amp_transpiler.targets.measured import arithmetic_for, unmeasured
from amp_transpiler.targets.operator import Operator
from amp_transpiler.targets.schemas_only import SCHEMAS_ONLY
from tests.support import parse
from tests.targets.webgpu_cases import CASES, accumulator_case, written_out_norm

WEB = arithmetic_of("WebGPU", "1.30", WEBGPU_TABLE)


def operator(op_type, opset, dtype, inputs=1):
    types = (f"tensor({dtype})",)
    return Operator("", op_type, (("", opset),), types * inputs, types)


def on_webgpu(model, **feeds):
    """Run a low model as WebGPU's shaders compute it."""
    shapes = {name: value.shape for name, value in feeds.items()}
    program = amp.emulate(simulated(amp.load(model), WEB, shapes).program)
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        return session.run(feeds)[0]


# ---- the target ----


@pytest.mark.parametrize(
    ("op", "inputs", "opset", "takes"),
    [
        ("MatMul", 2, 13, True),
        ("MaxPool", 1, 21, True),
        ("MaxPool", 1, 22, False),  # open-ended at 12, and 22 has a schema of its own
        ("Softplus", 1, 21, False),
        ("Softplus", 1, 22, True),
        ("Sum", 2, 13, False),  # the CPU's
        ("Round", 1, 11, False),
        ("LSTM", 3, 14, False),
    ],
)
def test_kernels_of_the_provider(op, inputs, opset, takes):
    assert WEBGPU.has_kernel(operator(op, opset, "float16", inputs)) is takes
    assert not WEBGPU.has_kernel(operator(op, opset, "bfloat16", inputs))


def test_the_cpu_takes_what_it_has_no_kernel_for():
    assert WEBGPU.providers == (WEBGPU, CPU)
    assert not WEBGPU.runs(operator("Sum", 13, "float16", 2))


def test_its_release_is_the_newest_one_of_onnxruntime_web():
    assert find_target("webgpu").ort <= "1.30"
    assert find_target("webgpu", "1.28").ort == "1.28"
    assert unmeasured(find_target("webgpu", "1.30")) == ""
    assert unmeasured(find_target("webgpu", "1.28")) == "the arithmetic of WebGpuExecutionProvider in ONNX Runtime 1.28"


@pytest.mark.parametrize("name", ["webgpu", "coreml", "directml"])
def test_without_bfloat16_it_is_refused(name):
    with pytest.raises(OptionError, match=f"target {name} has no bfloat16"):
        amp.transpile(accumulator_case()[0], target=name, dtype="bfloat16")


# ---- its arithmetic ----


def test_each_product_and_each_partial_sum_is_rounded():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((8, 30), (30, 16)))
    total = np.zeros((8, 16), np.float16)
    for k in range(30):
        total = (total + a[:, k : k + 1] * b[k]).astype(np.float16)
    model = parse("(float16[8,30] a, float16[30,16] b) => (float16[8,16] y) { y = MatMul (a, b) }")
    assert np.array_equal(on_webgpu(model, a=a, b=b), total)


def test_a_long_sum_overflows_inside_though_its_result_fits():
    a = np.full((1, 4096), 30, np.float16)
    b = np.concatenate([np.ones((2300, 1)), -np.ones((1796, 1))]).astype(np.float16)
    model = parse("(float16[1,4096] a, float16[4096,1] b) => (float16[1,1] y) { y = MatMul (a, b) }")
    assert np.isinf(on_webgpu(model, a=a, b=b)).all()
    assert on_webgpu(model, a=a / np.float16(4), b=b) == pytest.approx(3780, rel=0.02)


@pytest.mark.parametrize("rows", [3, 40])
def test_runs_may_differ_in_the_number_of_terms(rows):
    model = parse("(float16[2,N] a, float16[N,2] b) => (float16[2,2] y) { y = MatMul (a, b) }")
    program = amp.emulate(simulated(amp.load(model), WEB, {"a": (2, 7), "b": (7, 2)}).program)
    a, b = np.ones((2, rows), np.float16), np.full((rows, 2), 2, np.float16)
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        assert session.run({"a": a, "b": b})[0] == pytest.approx(2.0 * rows, rel=0.02)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = ReduceMean<axes=[-1], keepdims=0> (x)", (2, 4096)),
        ("y = ReduceL2<axes=[-1], keepdims=0> (x)", (2, 64)),
        ("y = GlobalAveragePool (x)", (1, 2, 64, 64)),
        ("y = AveragePool<kernel_shape=[64, 64]> (x)", (1, 2, 64, 64)),
    ],
)
def test_sums_of_pools_and_reductions_overflow(body, shape):
    sizes = ",".join(map(str, shape))
    model = parse(f"(float16[{sizes}] x) => (float16[A,B,C,D] y) {{ {body} }}".replace("[A,B,C,D]", ""), opset=17)
    assert not np.isfinite(on_webgpu(model, x=np.full(shape, 60, np.float16))).any()
    assert np.isfinite(on_webgpu(model, x=np.full(shape, 0.5, np.float16))).all()


def test_a_convolution_adds_blocks_of_channels():
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(1, 64, 6, 6)).astype(np.float16), rng.normal(size=(8, 16, 3, 3)).astype(np.float16)
    model = parse("(float16[1,64,6,6] x, float16[8,16,3,3] w) => (float16[1,8,4,4] y) { y = Conv<group=4> (x, w) }")
    with amp.Session(amp.emulate(model), amp.CPUPlace(), emulate=False) as session:
        once = session.run({"x": x, "w": w})[0].astype(np.float64)
    error = np.abs(on_webgpu(model, x=x, w=w).astype(np.float64) - once).max() / np.abs(once).max()
    assert 2.0**-12 < error < 2.0**-7


# ---- what is decided ----


def test_what_overflows_inside_stays_float32_at_level_auto():
    model, feeds = accumulator_case()
    report = amp.transpile(model, target="webgpu", inputs=feeds, split_sums="no")
    assert (report.low_nodes, report.verdict_word) == (0, "verified")
    with pytest.raises(CheckFailed, match="256 non-finite values"):
        amp.transpile(model, target="webgpu", inputs=feeds, level="O2")
    assert amp.transpile(model, target="cpu", inputs=feeds).low_nodes == 1


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_overflows_inside_is_low(name):
    model, feeds = CASES[name]()
    report = amp.transpile(model, target="webgpu", inputs=feeds, fuse="none")
    assert report.verdict_word == "verified"
    assert all(np.isfinite(output.relative) for output in report.outputs.values())


def test_standard_fusion_is_its_default():
    model, feeds = written_out_norm()
    report = amp.transpile(model, target="webgpu", inputs=feeds)
    assert "LayerNormalization" in {row.op for row in report.decisions}
    assert report.verdict_word == "verified"


# ---- backends whose arithmetic is unknown ----


@pytest.mark.parametrize("name", SCHEMAS_ONLY)
def test_the_worse_of_both_accumulators_is_told(name):
    model, feeds = accumulator_case()
    with pytest.raises(CheckFailed, match="256 non-finite values"):
        amp.transpile(model, target=name, inputs=feeds, level="O2")
    assert amp.transpile(model, target=name, inputs=feeds).low_nodes == 0
    assert unmeasured(TARGETS[name]) == f"the arithmetic of target {name}"


def test_of_an_unknown_backend_only_the_sums_of_webgpu_count():
    rows = arithmetic_for(TARGETS["coreml"]).rows
    assert ("MatMul", "float16") in rows
    assert ("Tanh", "float16") not in rows


@pytest.mark.parametrize("name", SCHEMAS_ONLY)
def test_they_have_no_operators_of_onnx_runtime(name):
    with pytest.raises(OptionError, match="contrib operators"):
        amp.transpile(accumulator_case()[0], target=name, fuse="contrib")
    with pytest.raises(OptionError, match=f"which {name} may not have"):
        amp.transpile(accumulator_case()[0], target=name, optimize=True)
