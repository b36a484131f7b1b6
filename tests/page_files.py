"""What the pages' examples take as given: files that they name, models of the corpus, packages, and what is not run.

`tests/test_code_blocks.py` runs the examples. A page that has a row in `CORPUS` or a name in `SLOW` runs with the slow
tests.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.autodiff.registry import RULES

ROOT = pathlib.Path(__file__).resolve().parents[1]

CORPUS = {
    "docs/howto/yolo.md": {
        "yolov8n.onnx": "shipped/nudenet/320n.onnx",
        "frames.npz": "shipped/nudenet/320n.inputs.npz",
    },
    # A smaller detector: sums as a browser's shaders make them are emulated, which took the larger one two minutes.
    "docs/howto/web.md": {
        "yolov8n.onnx": "exported/small_detector/dynamo.onnx",
        "frames.npz": "exported/small_detector/inputs.npz",
    },
}
"""Page -> file that it names -> where the corpus has it."""

MODULES: dict[str, tuple[str, ...]] = {
    "docs/howto/kv_cache.md": ("torch", "transformers", "onnxscript"),
    "docs/howto/olive.md": ("olive",),
    "docs/howto/openvino.md": ("openvino",),
    "docs/howto/optimum.md": ("optimum",),
    "docs/howto/torch_export.md": ("torch", "onnxscript"),
    "docs/howto/whisper.md": ("torch", "transformers", "onnxscript"),
    "docs/migration/torch_amp.md": ("torch", "onnxscript"),
    "docs/training/pytorch.md": ("torch", "onnxscript"),
    "docs/training/several_gpus.md": ("torch",),
}
"""Page -> packages that its examples import and this one does not need."""

SLOW = {
    "docs/howto/kv_cache.md",
    "docs/howto/olive.md",
    "docs/howto/openvino.md",
    "docs/howto/optimum.md",
    "docs/howto/torch_export.md",
    "docs/howto/tuning.md",
    "docs/howto/whisper.md",
    "docs/migration/torch_amp.md",
    "docs/training/pytorch.md",
    "docs/training/several_gpus.md",
}
"""Pages without a row in `CORPUS` that take more than a few seconds."""


def bert_files() -> dict[str, object]:
    """A model of one layer, a sample, and a tokenizer of its vocabulary."""
    shutil.copy(ROOT / "models/bert_1layer.onnx", "bert.onnx")
    shutil.copy(ROOT / "models/bert_1layer.inputs.npz", "texts.npz")
    return {"tokenizer": tokenize}


def tensorrt_files() -> dict[str, object]:
    """The same, and a model whose scale is float64."""
    files = bert_files()
    text = """<ir_version: 10, opset_import: ["": 20]> g (double[batch, 4] x) => (double[batch, 4] y)
        <double[4] scale = {0.1, 0.2, 0.3, 0.4}> { scaled = Mul (x, scale) y = Softmax (scaled) }"""
    onnx.save(onnx.parser.parse_model(text), "doubles.onnx")
    return files


def tokenize(texts: Sequence[str], *, padding: bool, return_tensors: str) -> dict[str, np.ndarray]:
    assert padding
    assert return_tensors == "np"
    words = [text.split() for text in texts]
    shape = (len(texts), max(map(len, words)))
    encoded = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, line in enumerate(words):
        encoded["input_ids"][row, : len(line)] = [1 + sum(word.encode()) % 58 for word in line]
        encoded["attention_mask"][row, : len(line)] = 1
    return encoded


def large_files() -> dict[str, object]:
    """A model with its weights in a file of their own; not a large one."""
    model = onnx.load(ROOT / "models/paddle_lenet.onnx")
    onnx.save(model, "large.onnx", save_as_external_data=True, location="large.onnx.data", size_threshold=0)
    return {}


def classifier_files() -> dict[str, object]:
    shutil.copy(ROOT / "models/paddle_lenet.onnx", "classifier.onnx")
    return {}


OVERFLOWING = """
<ir_version: 10, opset_import: ["": 20]>
encoder (float[batch, 64] x) => (float[batch, 10] logits)
{
    [block_0_up] up = MatMul (x, w_up)
    [block_0_gelu] activated = Gelu (up)
    [block_0_down] down = MatMul (activated, w_down)
    [block_0_residual] sum = Add (x, down)
    [block_1_norm] normed = LayerNormalization <axis: int = -1> (sum, scale, bias)
    [block_1_up] widened = MatMul (normed, w_widened)
    [block_1_gelu] hidden = Gelu (widened)
    [head] logits = MatMul (hidden, w_head)
}
"""


def overflowing_files() -> dict[str, object]:
    """A small encoder whose residual sum has a channel beyond float16's range, samples, and a conversion at O2."""
    model = onnx.parser.parse_model(OVERFLOWING)
    for node in model.graph.node:
        node.name = "/" + re.sub(r"block_(\d)_", r"block.\1/", node.name)
    draw = np.random.default_rng(0)
    weights = {
        **{name: draw.normal(0, 0.125, (64, 64)) for name in ("w_up", "w_down", "w_widened")},
        "w_head": draw.normal(0, 0.125, (64, 10)),
        "scale": np.ones(64),
        "bias": np.zeros(64),
    }
    weights["w_down"][:, 7] *= 300_000
    for name, weight in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), name))
    onnx.save(model, "encoder.onnx")
    np.savez("samples.npz", x=draw.normal(0, 1, (4, 64)).astype(np.float32))
    amp.transpile("encoder.onnx", "converted.onnx", level="O2", fuse="none", verify=False)
    return {}


def optimum_files() -> dict[str, object]:
    """A folder as Optimum exports it, with a small BERT."""
    import torch
    from optimum.exporters.onnx import main_export
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "film"]
    pathlib.Path("vocab.txt").write_text("\n".join(words), encoding="utf-8")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("source")
    BertTokenizerFast("vocab.txt").save_pretrained("source")
    main_export("source", "exported", task="text-classification")
    return {}


def zoo_files() -> dict[str, object]:
    """Make a folder of models in folders of their own, each with its sample beside it."""
    for name, source in (("a/convnet", "rocm_convnet"), ("b/lenet", "paddle_lenet")):
        folder = pathlib.Path("models", name).parent
        folder.mkdir(parents=True)
        for ending in ("onnx", "inputs.npz"):
            shutil.copy(ROOT / "models" / f"{source}.{ending}", f"models/{name}.{ending}")
    return {}


FILES: dict[str, Callable[[], dict[str, object]]] = {
    "docs/concepts/gpus.md": bert_files,
    "docs/howto/bert.md": bert_files,
    "docs/howto/bfloat16.md": bert_files,
    "docs/howto/debug.md": overflowing_files,
    "docs/howto/large_models.md": large_files,
    "docs/howto/many_models.md": zoo_files,
    "docs/howto/openvino.md": bert_files,
    "docs/howto/optimum.md": optimum_files,
    "docs/howto/other_runtimes.md": bert_files,
    "docs/howto/several_inputs.md": bert_files,
    "docs/howto/tensorrt.md": tensorrt_files,
    "docs/howto/tuning.md": bert_files,
    "docs/migration/autocast.md": bert_files,
    "docs/migration/onnxconverter_common.md": bert_files,
    "docs/migration/onnxruntime_float16.md": bert_files,
    "docs/training/finetune.md": classifier_files,
}
"""Page -> makes the files that it names in the current folder, and returns what its examples take as given."""

TRT_SHAPES = " ".join(
    f"--{which}Shapes=" + ",".join(f"{name}:{shape}" for name in ("input_ids", "attention_mask", "token_type_ids"))
    for which, shape in {"min": "1x8", "opt": "8x64", "max": "32x128"}.items()
)
COMMANDS = {
    "amp-transpile debug encoder.onnx --inputs samples.npz --no-cure --json diagnosis.json": "it ends with status 1",
    "amp-transpile debug encoder.onnx converted.onnx --inputs samples.npz --no-cure": "it ends with status 1",
    "amp-transpile debug encoder.onnx --inputs samples.npz --no-cure --device-check auto": "it ends with status 1",
    "amp-transpile debug swift-f0.onnx --ort 1.20 1.31 --python ort-1.20/bin/python": "it needs another release",
    "ort-1.20/bin/pip install 'onnxruntime==1.20.*' numpy": "a test installs nothing",
    "python scripts/webgpu_oracle.py yolov8n.fp16.onnx frames.npz": "tests/targets/test_webgpu_oracle.py runs it",
    "python -m venv ort-1.20": "it makes an environment; a test installs nothing",
    "./scripts/setup test dev": "it makes an environment; a test installs nothing",
    "pip install '.[cpu]'": "a test installs nothing; scripts/fresh_environments.py does",
    "pip install '.[cuda]'": "a test installs nothing; scripts/fresh_environments.py does",
    "pip install 'amp-transpiler[cpu,tensorrt]'": "a test installs nothing",
    "pip install .": "a test installs nothing; scripts/fresh_environments.py does",
    "pip install --force-reinstall --no-deps onnxruntime-gpu": "a test installs nothing",
    "olive run --config workflow.json --package-config passes.json": "tests/compat/test_olive.py runs it",
    "optimum-cli export onnx --model distilbert-base-uncased-finetuned-sst-2-english exported/": "it downloads a model",
    f"trtexec --onnx=bert.trt.onnx --saveEngine=bert.plan --stronglyTyped {TRT_SHAPES}": "it needs TensorRT and a GPU",
}
"""Command that is not run -> the reason."""

TEXTS = {
    (
        "docs/howto/debug.md",
        "What changes between ONNX Runtime 1.20",
    ): "it needs an environment with another release: tests/diagnosis/test_releases.py makes one",
    ("docs/howto/many_models.md", '"resnet.onnx" ='): "a manifest: tests/cli/test_many_models.py reads others",
    ("docs/howto/pre_commit.md", "repos:"): "the hook's configuration: tests/compat/test_hook.py compares it with ours",
    (
        "docs/howto/web.md",
        "import * as ort",
    ): "a page's script: it ran in a browser without a GPU, by hand",
}
"""Page and first line of a block that is neither run nor compared -> the reason."""


def is_slow(page: str) -> bool:
    return page in CORPUS or page in SLOW


def prepare(page: str, request: pytest.FixtureRequest) -> dict[str, object]:
    """Put the files of a page into the current folder; skip it, and say what is missing, where that cannot be."""
    for module in MODULES.get(page, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{page}: {module} is not installed")
        warnings.simplefilter("ignore")  # of theirs, until the test ends
    for name, source in CORPUS.get(page, {}).items():
        model_path = request.getfixturevalue("corpus") / source
        if not model_path.is_file():
            pytest.skip(f"{page}: the corpus has no {source}")
        for path in [model_path, *beside(model_path)]:
            pathlib.Path(path.name if path != model_path else name).symlink_to(path)
    if page == "CONTRIBUTING.md":
        rules = dict(RULES)
        request.addfinalizer(lambda: (RULES.clear(), RULES.update(rules)))
    return FILES.get(page, dict)()


def beside(model: pathlib.Path) -> Iterator[pathlib.Path]:
    """The files of weights that belong to a model."""
    yield from model.parent.glob(f"{model.name}.data")
