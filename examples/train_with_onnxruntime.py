"""Train with a program that `amp_transpiler.paddle.static.save_training_program` wrote, on nothing but ONNX Runtime.

    python examples/train_with_onnxruntime.py step.onnx batches.npz 100 CUDAExecutionProvider

`batches.npz` holds an array for each input that is fed; the state lies in `step.state.safetensors` and is written back.
"""

import json
import os
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later


def train(model: pathlib.Path, batches: pathlib.Path, steps: int, provider: str = "CPUExecutionProvider") -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=[provider])
    notes = session.get_modelmeta().custom_metadata_map
    fetches, updates = (json.loads(notes[f"amp_transpiler.{key}"]) for key in ("fetches", "updates"))
    feed, file = dict(np.load(batches)), model.with_suffix(".state.safetensors")
    state = load_file(file)
    for step in range(steps):
        results = session.run([*fetches.values(), *updates.values()], {**feed, **state})
        state |= zip(updates, results[len(fetches) :], strict=True)
        print(step, *results[: len(fetches)])
    save_file(state, file)


if __name__ == "__main__":
    train(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5])
