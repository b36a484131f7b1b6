"""The names of programs, without what it takes to build them: the run starts where a part of it cannot."""

from __future__ import annotations

__all__ = ["COMPILED", "COMPILED_BY_TORCH", "MODELS_WITH_OPTIONS", "STEPS_WITH_OPTIONS", "TRAINED", "TRAINED_BY_TORCH"]

# Network, level and format, by worth. "torch" and "raf" are the experiments as in their documents; a plus sign stands
# for a CUDA graph of the whole step, two for one that overwrites its state.
TRAINED = (
    *("transformer.fp32.float32", "transformer.O2.float16", "transformer.O2+.float16", "transformer.O2.bfloat16"),
    "transformer.O2++.float16",
    *("rocm.fp32.float32", "rocm.torch.float16", "rocm.O2.float16", "rocm.O2+.float16"),
    *("raf.fp32.float32", "raf.raf.float16", "raf.O2.float16", "raf.O2+.float16"),
    *("resnet50.fp32.float32", "resnet50.O2.float16", "resnet50.O2+.float16"),
    *("resnet18.fp32.float32", "resnet18.O2+.float16"),
    *("transformer.O1.float16", "resnet50.O1.float16", "resnet50.O2.bfloat16"),
)
TRAINED_BY_TORCH = tuple(
    f"{name}.{dtype}" for dtype in ("float16", "float32") for name in ("transformer", "rocm", "raf", "resnet50")
)
COMPILED_BY_TORCH = ("transformer.float16", "resnet50.float16", "raf.float16", "rocm.float16")
COMPILED = ("bert_base_b1", "vit_base", "resnet50", "gpt2_prefill")
# What the options of sessions are tried with.
MODELS_WITH_OPTIONS = ("resnet50", "bert_base_b8", "pointwise", "vit_base", "gpt2_prefill")
STEPS_WITH_OPTIONS = ("transformer.O2.float16", "rocm.O2.float16", "resnet18.O2.float16")
