#!/usr/bin/env python3
"""Measures exact rescaling on five kinds of networks whose values reach the magnitudes that users report.

    python lab/rescale_networks.py build FOLDER               # writes NAME.onnx and NAME.npz, by torch and transformers
    python lab/rescale_networks.py measure FOLDER [NAME ...]  # converts each; the table of docs/evidence/rescaling.md

The networks are small ones by transformers' configurations, with random weights; the VAE's decoder and the mixture of
experts are written here. What is made large is what is large in the models that users report: norm weights and output
projections, so that the stream of values between the layers reaches 5e4 to 6e5.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import amp_transpiler as amp
from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.report.precision import kind_of

SIZES = {"hidden": 256, "ffn": 512, "layers": 4, "tokens": 32}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network, and what it is run on.

    Attributes:
        make: returns the module, and its inputs by name.
        words: what is large in it.
    """

    make: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]
    words: str


def _tokens(vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, SIZES["tokens"]), generator=torch.Generator().manual_seed(1))


class _Last(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Returns only the first output of a model of transformers."""

    def __init__(self, model: nn.Module, name: str, field: str, **constants: Any) -> None:
        super().__init__()
        self.model, self.name, self.field, self.constants = model, name, field, constants

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.model(**{self.name: read}, **self.constants), self.field)
        return result


def gemma3() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Gemma 3: embeddings times a root, norms before and after each block, large weights of the norms after."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=SIZES["hidden"],
        intermediate_size=SIZES["ffn"],
        num_hidden_layers=SIZES["layers"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=16,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.post_feedforward_layernorm.weight.fill_(2e3)
            layer.post_feedforward_layernorm.weight[:2] = 6e4
            layer.post_attention_layernorm.weight.fill_(1e3)
    return _Last(model, "input_ids", "logits", use_cache=False), {"input_ids": _tokens(512)}


def t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """T5's encoder: norms before each block, large output projections of the feed-forward blocks."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=512,
        d_model=SIZES["hidden"],
        d_kv=64,
        d_ff=SIZES["ffn"],
        num_layers=SIZES["layers"],
        num_heads=4,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    model = T5EncoderModel(config)
    with torch.no_grad():
        for block in model.encoder.block:
            block.layer[1].DenseReluDense.wo.weight.mul_(6e4)
            block.layer[1].DenseReluDense.wo.weight[:2].mul_(8)
    return _Last(model, "input_ids", "last_hidden_state"), {"input_ids": _tokens(512)}


def moe() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Layers like gpt-oss's: a router, experts with clamped gates, and large biases and weights on the way out."""
    return _MixtureOfExperts(), {"x": torch.randn(1, SIZES["tokens"], SIZES["hidden"], generator=_generator(2))}


def vae() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A VAE's decoder like SDXL's: GroupNorm, SiLU, convolutions; large convolutions at the ends of the blocks."""
    return _Decoder((64, 64, 32)), {"latent": torch.randn(1, 4, 16, 16, generator=_generator(3))}


def vae_wide() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The same with four times the channels: products, not launches, take the time."""
    return _Decoder((256, 256, 128)), {"latent": torch.randn(1, 4, 32, 32, generator=_generator(3))}


def whisper() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Whisper's encoder: LayerNorm before each block, large output projections."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=SIZES["hidden"],
        encoder_layers=SIZES["layers"],
        encoder_attention_heads=4,
        encoder_ffn_dim=SIZES["ffn"],
        max_source_positions=64,
        attn_implementation="eager",
    )
    model = WhisperEncoder(config)
    with torch.no_grad():
        for layer in model.layers:
            layer.fc2.weight.mul_(3e5)
            layer.fc2.weight[:2].mul_(8)
    return _Last(model, "input_features", "last_hidden_state"), {
        "input_features": torch.randn(1, 80, 128, generator=_generator(4))
    }


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _RMSNorm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class _Experts(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """All experts on all tokens, weighed by the router, as gpt-oss computes them outside of training."""

    def __init__(self, size: int, inner: int, count: int) -> None:
        super().__init__()
        generator = _generator(5)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * shape[-2] ** -0.5)

        self.router = nn.Linear(size, count)
        self.gate, self.up = drawn(count, size, inner), drawn(count, size, inner)
        self.down = nn.Parameter(drawn(count, inner, size) * 6e4)
        self.down_bias = nn.Parameter(torch.randn(count, 1, size, generator=generator) * 4e4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.router(x), -1)  # [batch, tokens, experts]
        repeated = x.expand(self.gate.shape[0], -1, -1)
        gate = torch.clamp(torch.bmm(repeated, self.gate), max=7.0)
        up = torch.clamp(torch.bmm(repeated, self.up), -7.0, 7.0)
        inner = (up + 1.0) * (gate * torch.sigmoid(gate * 1.702))
        result = torch.bmm(inner, self.down) + self.down_bias
        return (result * shares.permute(2, 1, 0)).sum(0, keepdim=True)


class _Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, size = x.shape

        def split(linear: nn.Module) -> torch.Tensor:
            return linear(x).view(batch, tokens, self.heads, size // self.heads).transpose(1, 2)

        scores = split(self.query) @ split(self.key).transpose(2, 3) * (size // self.heads) ** -0.5
        mixed = torch.softmax(scores, -1) @ split(self.value)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, size))


class _MixtureOfExperts(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        size = SIZES["hidden"]
        self.enter, self.leave = nn.Linear(size, size), nn.Linear(size, 64)
        self.norms = nn.ModuleList(_RMSNorm(size) for _ in range(2 * SIZES["layers"] + 1))
        self.attentions = nn.ModuleList(_Attention(size, 4) for _ in range(SIZES["layers"]))
        self.experts = nn.ModuleList(_Experts(size, SIZES["ffn"], 4) for _ in range(SIZES["layers"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for index, (attention, experts) in enumerate(zip(self.attentions, self.experts, strict=True)):
            x = x + attention(self.norms[2 * index](x))
            x = x + experts(self.norms[2 * index + 1](x))
        result: torch.Tensor = self.leave(self.norms[-1](x))
        return result


class _Residual(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, read: int, written: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, read, eps=1e-6), nn.GroupNorm(8, written, eps=1e-6)
        self.conv1, self.conv2 = nn.Conv2d(read, written, 3, padding=1), nn.Conv2d(written, written, 3, padding=1)
        self.shortcut = nn.Conv2d(read, written, 1) if read != written else nn.Identity()
        with torch.no_grad():
            self.conv2.weight.mul_(3e4)
            self.conv2.weight[:2].mul_(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(nn.functional.silu(self.norm2(inner)))


class _Decoder(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.norm = nn.GroupNorm(8, widths[0], eps=1e-6)
        self.attention = _Attention(widths[0], 1)
        self.blocks = nn.ModuleList(_Residual(a, b) for a, b in zip((widths[0], *widths), widths, strict=False))
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths)
        self.last_norm, self.leave = nn.GroupNorm(8, widths[-1], eps=1e-6), nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        x = self.enter(latent)
        batch, width, rows, columns = x.shape
        mixed = self.attention(self.norm(x).flatten(2).transpose(1, 2))
        x = x + mixed.transpose(1, 2).reshape(batch, width, rows, columns)
        for block, up in zip(self.blocks, self.ups, strict=True):
            x = up(nn.functional.interpolate(block(x), scale_factor=2.0, mode="nearest"))
        result: torch.Tensor = self.leave(nn.functional.silu(self.last_norm(x)))
        return result


NETWORKS: Mapping[str, Network] = {
    "gemma3": Network(gemma3, "weights of the norms after each block: 2e3, two channels 6e4"),
    "t5": Network(t5, "output projections of feed-forward blocks times 6e4, two channels 8 times that"),
    "moe": Network(moe, "experts' output projections times 6e4, their biases 4e4"),
    "vae": Network(vae, "last convolutions of blocks times 3e4, two channels 6 times that"),
    "vae_wide": Network(vae_wide, "the same, with 256 and 128 channels in place of 64 and 32, and 32 x 32 latents"),
    "whisper": Network(whisper, "output projections of feed-forward blocks times 3e5, two channels 8 times that"),
}


def build(folder: pathlib.Path, names: list[str]) -> None:
    """Write the networks and their samples."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        torch.manual_seed(0)
        model, inputs = NETWORKS[name].make()
        path = folder / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(
                model.eval(), tuple(inputs.values()), path, input_names=list(inputs), dynamo=True, external_data=False
            )
        np.savez(folder / f"{name}.npz", **{key: value.numpy() for key, value in inputs.items()})
        print(name, sum(1 for _ in onnx.load(path).graph.node), "nodes")


@dataclasses.dataclass(frozen=True)
class Row:
    """A conversion of a network, in figures."""

    words: str
    products: str
    error: float
    milliseconds: tuple[float | None, float | None]
    weights: tuple[int, int]
    scaled: int
    seconds: float


def measured(path: pathlib.Path, words: str, **options: Any) -> tuple[Row, Any]:
    """Convert a network, and return what the table has of it."""
    report = amp.transpile(path, None, inputs=path.with_suffix(".npz"), cache=False, **options)
    products = [row for row in report.decisions if row.op in COMPUTE]
    low = sum(kind_of(row.precision) == "low" for row in products)
    error = max((output.relative for output in report.outputs.values()), default=0.0)
    row = Row(
        words,
        f"{low} of {len(products)}",
        error,
        report.predicted_ms,
        report.weight_bytes,
        len(report.rescaled),
        report.seconds,
    )
    return row, report


def largest_value(path: pathlib.Path) -> float:
    """Return the largest magnitude of a sum inside a network, masks left out."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    outputs = {info.name for info in model.graph.output}
    model.graph.output.extend(info for info in model.graph.value_info if info.name not in outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with np.load(path.with_suffix(".npz")) as arrays:
        results = session.run(None, dict(arrays))
    constants = {tensor.name for tensor in model.graph.initializer}
    adding = [node for node in model.graph.node if node.op_type in ("Add", "Sum") and constants.isdisjoint(node.input)]
    sums = {name for node in adding for name in node.output}
    named = zip((info.name for info in session.get_outputs()), results, strict=True)
    sizes = (float(np.abs(array).max()) for name, array in named if name in sums and array.dtype == np.float32)
    return max(size for size in sizes if size < _MASK)


_MASK = 1e9  # from there on a sum hides scores
_COLUMNS = ("network", "largest sum", "conversion", "products in float16", "error", "predicted ms", "weights", "scaled")
_CONVERSIONS: Mapping[str, Mapping[str, Any]] = {
    "rescaled": {"prefer": "size"},
    "`--rescale no`": {"prefer": "size", "rescale": "no"},
}


def measure(folder: pathlib.Path, names: list[str]) -> None:
    """Print the table, and what a conversion says of the rescaling."""
    print("| " + " | ".join(_COLUMNS) + " | s |")
    print("|---|" + "---|" * len(_COLUMNS))
    for name in names:
        path = folder / f"{name}.onnx"
        for words, options in _CONVERSIONS.items():
            row, report = measured(path, words, **options)
            size = f"{row.weights[1] / row.weights[0] - 1:+.0%}"
            times = ", ".join("-" if each is None else f"{each:.4f}" for each in row.milliseconds)
            figures = f"{row.products} | {row.error:.3%} | {times} | {size} | {row.scaled} | {row.seconds:.0f}"
            print(f"| {name} | {largest_value(path):.2g} | {words} | {figures} |", flush=True)
            for note in report.notes:
                if note.startswith("rescal"):
                    print("   ", note)


def main() -> int:
    """Build or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "measure"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    names = arguments.names or list(NETWORKS)
    (build if arguments.what == "build" else measure)(arguments.folder, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
