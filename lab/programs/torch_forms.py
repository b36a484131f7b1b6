"""Exports small modules with torch's two exporters, with and without decomposition, in several opsets."""

from __future__ import annotations

import contextlib
import functools
import io
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["MODULES", "export_all"]

WIDTH, HEADS = 64, 4
SCRIPT_OPSETS, DYNAMO_OPSETS = (13, 17), (18, 20)


class _Attention(nn.Module):  # type: ignore[misc]
    """Heads of attention between projections, causal or not, by torch's function or written out."""

    def __init__(self, *, by_hand: bool, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.by_hand, self.causal = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            by_hand,
            causal,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        q, k, v = (part.reshape(1, rows, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.by_hand:
            weights = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5, dim=-1)
            mixed = weights @ v
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(1, rows, WIDTH))


class _RMS(nn.Module):  # type: ignore[misc]
    """Root mean square normalisation as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.before = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _after_linear(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), module, nn.Linear(WIDTH, WIDTH))


# Name -> makes the module.
MODULES: dict[str, Callable[[], nn.Module]] = {
    "layer_norm": lambda: _after_linear(nn.LayerNorm(WIDTH)),
    "layer_norm_without_weight": lambda: _after_linear(nn.LayerNorm(WIDTH, elementwise_affine=False)),
    "rms_norm": lambda: _after_linear(nn.RMSNorm(WIDTH)),
    "rms_norm_by_hand": _RMS,
    "gelu": lambda: _after_linear(nn.GELU()),
    "gelu_by_tanh": lambda: _after_linear(nn.GELU(approximate="tanh")),
    "attention": lambda: _Attention(by_hand=False, causal=False),
    "attention_causal": lambda: _Attention(by_hand=False, causal=True),
    "attention_by_hand": lambda: _Attention(by_hand=True, causal=False),
    "encoder_layer": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 128, activation="gelu", batch_first=True),
    "encoder_layer_norm_first": lambda: nn.TransformerEncoderLayer(
        WIDTH, HEADS, 128, activation="gelu", batch_first=True, norm_first=True
    ),
    "decoder_layer": lambda: nn.TransformerDecoderLayer(WIDTH, HEADS, 128, activation="gelu", batch_first=True),
}


def export_all(folder: pathlib.Path) -> list[pathlib.Path]:
    """Export every module in every way; what torch does not export is left out, and named."""
    paths = []
    for name, make in MODULES.items():
        torch.manual_seed(0)
        module = make().eval()
        inputs = (torch.rand(1, 16, WIDTH),) * (2 if name == "decoder_layer" else 1)
        for way, export in _ways(module, inputs):
            path = folder / name / f"{way}.onnx"
            path.parent.mkdir(exist_ok=True)
            try:
                with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                    warnings.simplefilter("ignore")
                    export(path)
            except Exception as error:  # noqa: BLE001 - torch raises many kinds
                print(f"{name} {way}: torch does not export it: {type(error).__name__}")
                continue
            paths.append(path)
    return paths


def _ways(module: nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, Callable[[pathlib.Path], Any]]]:
    for opset in SCRIPT_OPSETS:
        yield f"script_{opset}", functools.partial(_by_script, module, inputs, opset)
    for opset in DYNAMO_OPSETS:
        yield f"dynamo_{opset}", functools.partial(_by_dynamo, module, inputs, opset, False)
        yield f"dynamo_{opset}_decomposed", functools.partial(_by_dynamo, module, inputs, opset, True)


def _by_script(module: nn.Module, inputs: tuple[Any, ...], opset: int, path: pathlib.Path) -> None:
    torch.onnx.export(module, inputs, str(path), opset_version=opset, dynamo=False)


def _by_dynamo(module: nn.Module, inputs: tuple[Any, ...], opset: int, decomposes: bool, path: pathlib.Path) -> None:
    exported = torch.export.export(module, inputs)
    if decomposes:
        exported = exported.run_decompositions()  # to torch's core operators, before the exporter sees any other
    torch.onnx.export(exported, inputs, str(path), opset_version=opset, dynamo=True, verbose=False)
