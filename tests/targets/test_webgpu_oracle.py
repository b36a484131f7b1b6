"""What `--target webgpu` says, held against ONNX Runtime's WebGPU provider itself, which needs no GPU.

`scripts/webgpu_oracle.py` fetches it; where that cannot be, these tests are skipped with its reason.
"""

import math
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import webgpu_oracle
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.targets.arithmetic import WEBGPU_TABLE, arithmetic_of
from amp_transpiler.verification.compare import compare_outputs
from tests.support import parse
from tests.targets.webgpu_cases import CASES, accumulator_case

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
WEB = arithmetic_of("WebGPU", "1.30", WEBGPU_TABLE)
RNG_SHAPES = {  # a node, the shapes of its inputs, and by what they are multiplied
    "a product": ("y = MatMul (a, b)", ((8, 30), (30, 16)), 1.0),
    "a long product": ("y = MatMul (a, b)", ((16, 768), (768, 32)), 1.0),
    "a product beyond": ("y = MatMul (a, b)", ((4, 2048), (2048, 8)), 60.0),
    "Gemm": ("y = Gemm<alpha=0.5, transB=1> (a, b)", ((16, 100), (24, 100)), 1.0),
    "a convolution": ("y = Conv<pads=[1, 1, 1, 1]> (a, b)", ((1, 32, 8, 8), (8, 32, 3, 3)), 1.0),
    "a grouped convolution": ("y = Conv<group=4> (a, b)", ((1, 32, 8, 8), (8, 8, 3, 3)), 1.0),
    "a transposed convolution": ("y = ConvTranspose<strides=[2, 2]> (a, b)", ((1, 32, 6, 6), (32, 4, 3, 3)), 1.0),
    "a sum": ("y = ReduceL1<axes=[-1]> (a)", ((16, 512),), 1.0),
    "a mean beyond": ("y = ReduceMean<axes=[-1]> (a)", ((16, 512),), 1.0),
    "a pool": ("y = GlobalAveragePool (a)", ((1, 16, 12, 12),), 1.0),
    "squares beyond": ("y = ReduceL2<axes=[-1]> (a)", ((16, 512),), 30.0),
}


@pytest.fixture(scope="module")
def oracle():
    """The provider; skipped where it cannot be installed."""
    try:
        folder = webgpu_oracle.install()
    except webgpu_oracle.NotInstallable as problem:
        pytest.skip(str(problem))
    with webgpu_oracle.Oracle(folder) as opened:
        yield opened


def outputs_of(oracle, model, feeds, folder):
    path = folder / "model.onnx"
    onnx.save(model, path)
    return oracle.run(path, feeds)


def test_float16_products_are_added_in_float16(oracle, tmp_path):
    model, feeds = accumulator_case()
    low = amp.transpile(model, target="cpu", inputs=feeds)
    assert low.verdict_word == "verified"  # for the CPU it is
    amp.save(low.program, tmp_path / "cpu.onnx")
    assert np.isinf(oracle.run(tmp_path / "cpu.onnx", feeds)["y"]).all()
    assert np.isfinite(outputs_of(oracle, model, feeds, tmp_path)["y"]).all()


@pytest.mark.parametrize("fuse", [None, "none"])
@pytest.mark.parametrize("name", CASES)
def test_results_for_webgpu_are_as_their_verdict_says(oracle, tmp_path, name, fuse):
    model, feeds = CASES[name]()
    report = amp.transpile(model, tmp_path / "web.onnx", target="webgpu", inputs=feeds, fuse=fuse)
    exact = outputs_of(oracle, model, feeds, tmp_path)
    (row,) = compare_outputs([exact], [oracle.run(tmp_path / "web.onnx", feeds)]).values()
    assert row.nonfinite == 0
    assert row.relative <= 2 * report.outputs["y"].relative + 1e-6


@pytest.mark.parametrize("name", RNG_SHAPES)
def test_no_node_is_better_emulated_than_it_is(oracle, tmp_path, name):
    """Nor does one overflow that does not overflow in the emulation."""
    text, shapes, factor = RNG_SHAPES[name]
    rng = np.random.default_rng(7)
    offset = 200.0 if "mean beyond" in name else 0.0
    arrays = [(offset + factor * rng.normal(size=shape)).astype(np.float16) for shape in shapes]
    feeds = dict(zip("ab", arrays, strict=False))
    types = ", ".join(f"float16[{','.join(map(str, x.shape))}] {key}" for key, x in feeds.items())
    model = parse(f"({types}) => (float16[{','.join('ABCD'[: len(shapes[0])])}] y) {{ {text} }}", opset=17)
    real = outputs_of(oracle, model, feeds, tmp_path)["y"].astype(np.float64)
    program = amp.emulate(simulated(amp.load(model), WEB, {key: x.shape for key, x in feeds.items()}).program)
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        emulated = session.run(feeds)[0].astype(np.float64)
    wide = {key: value.astype(np.float32) for key, value in feeds.items()}
    exact = outputs_of(oracle, parse_wide(types, shapes, text), wide, tmp_path)["y"].astype(np.float64)
    assert not (~np.isfinite(real) & np.isfinite(emulated)).any()
    both = np.isfinite(real) & np.isfinite(emulated)
    assert rms(real[both] - exact[both]) <= 1.25 * rms(emulated[both] - exact[both])


@pytest.mark.parametrize("parts", [8, 16])
def test_products_in_parts_are_emulated_to_the_bit(oracle, tmp_path, parts):
    model, feeds = accumulator_case()
    report = amp.transpile(model, target="webgpu", inputs=feeds, split_sums={"MatMul_y": parts}, prefer="size")
    assert report.in_parts == {"MatMul_y": parts}
    amp.save(report.program, tmp_path / "parts.onnx")
    program = amp.emulate(simulated(report.program, WEB, {key: x.shape for key, x in feeds.items()}).program)
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        emulated = session.run(feeds)[0]
    np.testing.assert_array_equal(oracle.run(tmp_path / "parts.onnx", feeds)["y"], emulated)


def parse_wide(types, shapes, text):
    wide = types.replace("float16", "float")
    return parse(f"({wide}) => (float[{','.join('ABCD'[: len(shapes[0])])}] y) {{ {text} }}", opset=17)


def rms(values):
    return math.sqrt(np.mean(np.square(values))) if values.size else 0.0


def test_the_program_prints_what_comes_out(oracle, tmp_path):
    model, feeds = accumulator_case()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **feeds)
    command = [sys.executable, ROOT / "scripts" / "webgpu_oracle.py", tmp_path / "m.onnx", tmp_path / "x.npz"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("y  float32[4, 64]  ")
    placed = subprocess.run([*command, "--placement"], capture_output=True, text=True, check=True).stdout
    assert placed == "WebGpuExecutionProvider: 1 nodes\n"


def test_without_its_programs_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(webgpu_oracle.shutil, "which", lambda name: None if name in ("node", "npm") else f"/{name}")
    with pytest.raises(webgpu_oracle.NotInstallable, match="needs node, npm"):
        webgpu_oracle.install(tmp_path / "oracle")
