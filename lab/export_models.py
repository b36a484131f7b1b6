#!/usr/bin/env python3
"""Make the small models of `models/` from real architecture code, with seeded weights, each with a sample input.

    python lab/export_models.py            # writes models/*.onnx and models/*.inputs.npz
    python lab/export_models.py --only bert_1layer --into FOLDER

Needs the extra [export]. Every model is compared with eager PyTorch before it is kept.

paddle_lenet   the LeNet-like network of Paddle's pull request 29544 (pure fp16 training), section 3: conv2d, batch_norm
               and ReLU, max_pool2d, fc, softmax. BatchNormalization is kept as a node.
rocm_convnet   the 1x1-conv network of the ROCm blog on automatic mixed precision; 32 channels wide instead of 256,
               BatchNormalization kept, any size.
bert_1layer    transformers' BertModel: one layer of width 32 with an attention mask, through torch.export.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from corpus.architectures import Built, rocm_layers
from corpus.exporting import export_dynamo, export_torchscript
from corpus.torch_tools import SEED, call_as, image, normal, perturb_norms, to_numpy, token_ids

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

MODELS = pathlib.Path(__file__).resolve().parent.parent / "models"
ALL_LIMIT = 200_000  # bytes, of all the files together
TOLERANCE = 1e-5  # largest error over largest value, ONNX Runtime's CPU provider against eager PyTorch


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one model is made: its module and inputs, and through which exporter (`None`: tracing, at opset 17)."""

    build: Callable[[], Built]
    dynamo_opset: int | None = None


def paddle_lenet() -> Built:
    from torch import nn

    convolution = (nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2, 2))  # Paddle pads nothing
    model = perturb_norms(nn.Sequential(*convolution, nn.Flatten(), nn.Linear(6 * 13 * 13, 10), nn.Softmax(-1)))
    return Built(model, {"image": image(2, 1, 28)}, ["predict"], {"image": {0: "batch"}, "predict": {0: "batch"}})


def rocm_convnet() -> Built:
    axes = {0: "batch", 2: "height", 3: "width"}
    return Built(rocm_layers(32), {"x": normal(6, 1, 2, 16, 16)}, ["y"], {"x": axes, "y": axes})


def bert_1layer() -> Built:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
        attn_implementation="eager",
    )

    def call(bert: Any, ids: Any, mask: Any, types: Any) -> Any:
        return tuple(bert(input_ids=ids, attention_mask=mask, token_type_ids=types, return_dict=False))[:2]

    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 17:] = 0
    types = torch.zeros(2, 24, dtype=torch.int64)
    types[:, 12:] = 1
    feed = {"input_ids": token_ids(2, 24, 60), "attention_mask": mask, "token_type_ids": types}
    outputs = ["last_hidden_state", "pooler_output"]
    axes = {key: {0: "batch", 1: "sequence"} for key in feed}
    return Built(call_as(perturb_norms(BertModel(config)), call), feed, outputs, axes)


RECIPES = {
    "paddle_lenet": Recipe(paddle_lenet),
    "rocm_convnet": Recipe(rocm_convnet),
    "bert_1layer": Recipe(bert_1layer, 20),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(RECIPES), default=sorted(RECIPES), metavar="NAME")
    parser.add_argument("--into", type=pathlib.Path, default=MODELS, metavar="FOLDER")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # the exporters warn of their own insides
    logging.disable(logging.WARNING)
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        export(name, options.into)
    total = sum(path.stat().st_size for name in RECIPES for path in options.into.glob(f"{name}.[io]n*"))
    print(f"{total / 1e6:.2f} MB in all")
    if total > ALL_LIMIT:
        sys.exit(f"export_models.py: {options.into} holds {total} bytes, more than {ALL_LIMIT}: it must stay small")
    return 0


def export(name: str, folder: pathlib.Path) -> None:
    """Write `folder/name.onnx` and `folder/name.inputs.npz`.

    Raises:
        ValueError: ONNX Runtime's outputs are not PyTorch's.
    """
    import torch

    torch.manual_seed(SEED)
    recipe = RECIPES[name]
    built = recipe.build()
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        path = pathlib.Path(scratch) / "model.onnx"
        if recipe.dynamo_opset is None:
            export_torchscript(built, path, dynamic=True, raw=True)
        else:
            export_dynamo(built, path, recipe.dynamo_opset, dynamic=True, optimize=True, external_data=False)
        model = onnx.load(path)
        result = built.module(*built.inputs.values())
    model.graph.name = name
    _forget_the_exporters_machine(model)
    onnx.checker.check_model(model, full_check=True)
    feed = {key: to_numpy(tensor) for key, tensor in built.inputs.items()}
    wanted = [to_numpy(tensor) for tensor in ([result] if isinstance(result, torch.Tensor) else result)]
    error = _error(model, feed, wanted)
    if not error < TOLERANCE:
        raise ValueError(f"{name}: ONNX Runtime's outputs differ from PyTorch's by {error:.3g} of the largest value")
    onnx.save(model, folder / f"{name}.onnx")
    np.savez_compressed(folder / f"{name}.inputs.npz", **feed)  # type: ignore[arg-type]  # arrays by name
    size = model.ByteSize()
    print(
        f"{name}: {len(model.graph.node)} nodes, opset {model.opset_import[0].version}, {size} bytes, error {error:.2g}"
    )


def _forget_the_exporters_machine(model: onnx.ModelProto) -> None:
    """Drop stack traces and source paths: they name files of the machine that exported."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer]
    for part in [model, model.graph, *model.graph.node, *values]:
        del part.metadata_props[:]
        part.doc_string = ""


def _error(model: onnx.ModelProto, feed: dict[str, np.ndarray], wanted: list[np.ndarray]) -> float:
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, feed)
    return max(float(np.abs(got - want).max() / np.abs(want).max()) for got, want in zip(outputs, wanted, strict=True))


if __name__ == "__main__":
    sys.exit(main())
