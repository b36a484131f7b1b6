"""Ten steps of a module of lab/corpus/architectures.py in PyTorch, as lab/bench_finetune.py asks for them.

It runs in the environment that the exports were made in. The module gets the weights of its seed; normalisations by
batches compute statistics of the batch, as `static.from_onnx` makes them do. The last line of its output is a record.
"""

from __future__ import annotations

import json
import logging
import pathlib
import sys
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from corpus.architectures import ARCHITECTURES
from corpus.torch_tools import SEED

FOLDED = "the exporter folded BatchNormalization into the convolutions: other parameters are trained"
NUDGE = 2.0**-24
MERGED = "the exporter merged or folded parameters: there are {} numbers in the file, and {} in PyTorch"


def losses_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return PyTorch's losses."""
    path = pathlib.Path(request["path"])
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    built = ARCHITECTURES[path.parent.name].build(path.parents[2])
    module = built.module.eval()
    norms = [each for each in module.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
    if norms and not request["has_batch_norms"]:
        return {"skipped": FOLDED}
    for norm in norms:
        norm.train()
    target = torch.from_numpy(np.load(request["target"]))
    inputs = list(built.inputs.values())
    if request["as"] in ("float64", "nudged"):  # from the same float32 numbers
        module, target = module.double(), target.double()
        inputs = [each.double() if each.is_floating_point() else each for each in inputs]
    if request["as"] == "channels last":
        module = module.to(memory_format=torch.channels_last)
        inputs = [each.to(memory_format=torch.channels_last) if each.ndim == 4 else each for each in inputs]
    if request["as"] == "nudged":  # by what float32 cannot tell
        draws = torch.Generator().manual_seed(SEED)
        for parameter in module.parameters():
            parameter.data.mul_(1 + NUDGE * torch.randn(parameter.shape, generator=draws).to(parameter.dtype))
    parameters = [parameter.requires_grad_() for parameter in module.parameters()]
    adam = torch.optim.Adam(parameters, lr=request["rate"])
    losses = []
    for _ in range(request["steps"]):
        result = module(*inputs)
        result = result if isinstance(result, torch.Tensor) else result[request["place"]]
        loss = torch.mean(((result.to(target.dtype) - target) * request["scale"]) ** 2)
        adam.zero_grad()
        loss.backward()
        trained = sum(parameter.numel() for parameter in parameters if parameter.grad is not None)
        if trained != request["numbers"]:  # parameters that the exporter put side by side are trained alike by Adam
            return {"skipped": MERGED.format(request["numbers"], trained)}
        adam.step()
        losses.append(float(loss))
    return {"losses": losses, "numbers": trained}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(json.dumps(losses_of(json.loads(sys.argv[1]))))
