"""A module of its own, without postponed annotations: torch.jit.script reads the source and its annotations."""

import torch
from torch import Tensor, nn


class ScriptedLoop(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A recurrence over time that halves its state when it grows: Loop and If in ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.recurrent = nn.Linear(16, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last state, [batch, 32], of x, [batch, time, 16]."""
        h = torch.zeros(x.shape[0], 32)
        for t in range(x.shape[1]):
            h = torch.tanh(self.inwards(x[:, t]) + self.recurrent(h))
            if bool(h.sum() > 10):
                h = h * 0.5
        return h
