"""Operators whose arithmetic is taken from another one launch the kernel that a device has run for it."""

import re

import onnx
import pytest

from amp_transpiler.targets.arithmetic import arithmetic_of
from tests.support import parse

ROWS = 128
# operator of ONNX Runtime -> its node, and that of the measured operator which has its kernel
SAME = {
    "com.microsoft::Gelu": ("y = com.microsoft.Gelu(x)", "y = Gelu(x)"),
    "com.microsoft::FastGelu": ("y = com.microsoft.FastGelu(x)", 'y = Gelu<approximate="tanh">(x)'),
    "com.microsoft::FastGelu with a bias": ("y = com.microsoft.FastGelu(x, b)", 'y = Gelu<approximate="tanh">(x)'),
}
# What the device was asked (`runtime/probe/attention.py`) -> the form that is written (`fusion/standard_attention.py`).
ATTENTION = {
    "no mask": ("", "flash_fwd_kernel"),
    "a mask": (", m", "attention_kernel_batched_impl"),
}


def kernels(counted, tmp_path, text, opset):
    path = tmp_path / "model.onnx"
    onnx.save(parse(text, opset=opset), path)
    return set(counted.model(path)["kernels"])


@pytest.mark.slow
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SAME)
def test_a_kernel_is_that_of_a_measured_operator(name, low, counted, tmp_path):
    launched = [
        kernels(counted, tmp_path, f"({low}[1,{ROWS},64] x, {low}[64] b) => ({low}[1,{ROWS},64] y) {{ {node} }}", 20)
        for node in SAME[name]
    ]
    assert launched[0] == launched[1]
    assert len(launched[0]) == 1


def test_each_row_that_counts_as_the_same_kernel_is_shown():
    rows = arithmetic_of("H100", "1.31").rows
    named = {operator for (operator, _), several in rows.items() for row in several if row.evidence == "kernel"}
    assert named == {name.split(" ")[0] for name in SAME}


@pytest.mark.slow
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_launches_the_kernel_that_a_device_has_run(name, low, counted, tmp_path):
    """Of the same head size and tile; with a mask, whether its rows lie on 16 bytes is a parameter of the kernel."""
    mask, kernel = ATTENTION[name]
    asked = f"({low}[1,2,4,64] q, {low}[1,2,4,64] k, {low}[1,2,4,64] v, {low}[4,4] m) => ({low}[1,2,4,64] y)"
    form = f"({low}[1,{ROWS},128] q, {low}[1,{ROWS},128] k, {low}[1,{ROWS},128] v, {low}[1,1,{ROWS},{ROWS}] m)"
    form = f"{form} => ({low}[1,{ROWS},128] y)"
    heads = "<q_num_heads=2, kv_num_heads=2>"
    run_there = kernels(counted, tmp_path, f"{asked} {{ y = Attention(q, k, v{mask}) }}", 23)
    written = kernels(counted, tmp_path, f"{form} {{ y = Attention{heads}(q, k, v{mask}) }}", 23)
    assert _attending(written, kernel) == _attending(run_there, kernel)
    assert len(_attending(written, kernel)) == 1
    others = {each for each in written if kernel not in each}
    assert all("ZeroFullyMaskedRows" in each for each in others)
    assert len(others) == bool(mask)


def _attending(kernels, name):
    """Return the head size and the tile of the kernels of a name."""
    return [re.findall(r"\b\d+\b", each)[:3] for each in kernels if name in each]
