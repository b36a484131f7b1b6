"""Training steps that torch exports, each once in a run of the tests: an export takes seconds, and two files ask."""

from __future__ import annotations

import fcntl
import pathlib
import pickle

import onnx
import pytest

from foreign.torch_steps import TORCH_NETWORKS, Exporter, from_torch
from foreign.writer import ForeignStep


class ExportedSteps:
    """Steps of `from_torch`. A folder of the run holds them: the files that ask for them may be in several workers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def __call__(self, network: str, exporter: Exporter) -> ForeignStep:
        """Return a step; skip the test where torch, or what its newer exporter needs, is not installed."""
        pytest.importorskip("torch", reason="torch exports these steps: install the extra [torch]")
        if exporter == "dynamo":
            pytest.importorskip("onnxscript", reason="torch's newer exporter needs it: install the extra [torch]")
        path = self._folder / f"{network}-{exporter}.pickle"
        with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                step = from_torch(network, exporter)
                path.write_bytes(pickle.dumps((step.model.SerializeToString(), step.states, step.loss)))
        model, states, loss = pickle.loads(path.read_bytes())
        return ForeignStep(onnx.load_from_string(model), states, TORCH_NETWORKS[network].batch, loss)
