"""The models whose inference is measured: built from configurations with random weights, and exported here."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpu.records import Unavailable

__all__ = ["SUBJECTS", "Subject", "built", "export"]

SMALL_TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model.

    Attributes:
        name: of its rows.
        build: returns the module and its inputs by name, at full size or small.
        needs: modules that must be installed.
    """

    name: str
    build: Callable[[bool], tuple[Any, dict[str, Any]]]
    needs: tuple[str, ...] = ("torch", "transformers")

    def check(self) -> None:
        """Ask whether the model can be made here.

        Raises:
            Unavailable: it cannot.
        """
        missing = [module for module in self.needs if importlib.util.find_spec(module) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not installed")


def _bert(batch: int) -> Callable[[bool], tuple[Any, dict[str, Any]]]:
    def build(tiny: bool) -> tuple[Any, dict[str, Any]]:
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(**SMALL_TEXT) if tiny else BertConfig())
        ids = _tokens(batch, 8 if tiny else 128, 1000)
        feed = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        return _called(model, lambda bert, *feeds: _first(bert, feed, feeds)), feed

    return build


def _gpt2(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2} if tiny else {}
    model = GPT2LMHeadModel(GPT2Config(use_cache=False, attn_implementation="eager", **sizes))
    ids = _tokens(1, 8 if tiny else 128, 1000)
    feed = {"input_ids": ids, "attention_mask": ids * 0 + 1}
    return _called(model, lambda network, *feeds: _first(network, feed, feeds, use_cache=False)), feed


def _vit(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(**SMALL_TEXT, image_size=32) if tiny else ViTConfig(num_labels=1000))
    feed = {"pixel_values": _picture(32 if tiny else 224)}
    return _called(model, lambda network, *feeds: _first(network, feed, feeds)), feed


def _resnet50(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]} if tiny else {"num_labels": 1000}
    feed = {"pixel_values": _picture(32 if tiny else 224)}
    model = ResNetForImageClassification(ResNetConfig(**sizes))
    return _called(model, lambda network, *feeds: _first(network, feed, feeds)), feed


def _whisper(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    frames = 40 if tiny else 3000
    model = WhisperEncoder(WhisperConfig(max_source_positions=frames // 2, **(sizes if tiny else {})))
    feed = {"features": _normal(1, 80, frames)}
    return _called(model, lambda network, *feeds: network(*feeds, return_dict=False)[0]), feed


def _t5(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2} if tiny else {}
    ids = _tokens(4, 8 if tiny else 128, 1000)
    feed = {"input_ids": ids, "attention_mask": ids * 0 + 1}
    return _called(T5EncoderModel(T5Config(**sizes)), lambda network, *feeds: _first(network, feed, feeds)), feed


def _llama(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, heads = (32, 1, 2) if tiny else (1024, 8, 16)
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads // 2}
    model = LlamaForCausalLM(LlamaConfig(use_cache=False, attn_implementation="eager", **sizes, **heads_of))
    ids = _tokens(1, 8 if tiny else 256, 1000)
    feed = {"input_ids": ids, "attention_mask": ids * 0 + 1}
    return _called(model, lambda network, *feeds: _first(network, feed, feeds, use_cache=False)), feed


def _convnext(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2} if tiny else {"num_labels": 1000}
    feed = {"pixel_values": _picture(32 if tiny else 224)}
    model = ConvNextForImageClassification(ConvNextConfig(**sizes))
    return _called(model, lambda network, *feeds: _first(network, feed, feeds)), feed


def _mobilenet(tiny: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    sizes = {"depth_multiplier": 0.25} if tiny else {"num_labels": 1000}
    feed = {"pixel_values": _picture(32 if tiny else 224)}
    model = MobileNetV2ForImageClassification(MobileNetV2Config(**sizes))
    return _called(model, lambda network, *feeds: _first(network, feed, feeds)), feed


def _pointwise(tiny: bool) -> tuple[Any, dict[str, Any]]:
    import torch

    from corpus.architectures import rocm_layers

    size = 16 if tiny else 512
    return rocm_layers(4 if tiny else 256), {"x": torch.rand(1, 2, size, size)}


SUBJECTS: Mapping[str, Subject] = {
    subject.name: subject
    for subject in (
        Subject("bert_base_b1", _bert(1)),
        Subject("bert_base_b8", _bert(8)),
        Subject("resnet50", _resnet50),
        Subject("gpt2_prefill", _gpt2),
        Subject("vit_base", _vit),
        Subject("pointwise", _pointwise, ("torch",)),
        Subject("whisper_encoder", _whisper),
        Subject("t5_encoder", _t5),
        Subject("llama_prefill", _llama),
        Subject("convnext", _convnext),
        Subject("mobilenet", _mobilenet),
    )
}
"""Name -> model."""


def built(subject: Subject, *, tiny: bool) -> tuple[Any, dict[str, Any]]:
    """Return the module in evaluation form, from seeded weights, and its inputs.

    Raises:
        Unavailable: it cannot be made here.
    """
    subject.check()
    import torch

    from corpus.torch_tools import SEED, perturb_norms

    torch.manual_seed(SEED)
    module, feeds = subject.build(tiny)
    return perturb_norms(module), feeds


def export(subject: Subject, folder: pathlib.Path, *, tiny: bool) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """Write the model by tracing, which needs PyTorch and nothing else, in fixed shapes; return its path and inputs.

    Raises:
        Unavailable: it cannot be made here.
    """
    module, feeds = built(subject, tiny=tiny)
    import torch

    from corpus.architectures import Built
    from corpus.exporting import export_torchscript

    path = folder / f"{subject.name}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what tracing takes for constant, and is
        export_torchscript(Built(module, feeds, ["output"]), path, dynamic=False, raw=False)
    return path, {name: value.numpy() for name, value in feeds.items()}


def _first(network: Any, feed: Mapping[str, Any], feeds: tuple[Any, ...], **options: Any) -> Any:
    return network(**dict(zip(feed, feeds, strict=True)), return_dict=False, **options)[0]


def _called(module: Any, call: Callable[..., Any]) -> Any:
    from corpus.torch_tools import call_as

    return call_as(module, call)


def _tokens(batch: int, length: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def _picture(size: int) -> Any:
    return _normal(1, 3, size, size)


def _normal(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
