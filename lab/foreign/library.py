"""Every step that can be made without torch: each network with each optimizer, and a few more."""

from __future__ import annotations

from foreign.networks import NETWORKS
from foreign.optimizers import OPTIMIZERS
from foreign.writer import ForeignStep, Writer

__all__ = ["BY_HAND", "by_hand"]

# Every network with SGD and with AdamW; every optimizer with the two-layer network.
BY_HAND = tuple(
    dict.fromkeys(
        [(network, "sgd") for network in NETWORKS]
        + [(network, "adamw_clipped") for network in NETWORKS]
        + [("mlp", optimizer) for optimizer in OPTIMIZERS]
    )
)


def by_hand(network: str, optimizer: str, rate: float = 1e-3) -> ForeignStep:
    """Write a step.

    Args:
        network: a name of `NETWORKS`.
        optimizer: a name of `OPTIMIZERS`.
        rate: the learning rate.
    """
    writer = Writer()
    gradients = NETWORKS[network](writer)
    OPTIMIZERS[optimizer](writer, gradients, rate)
    return writer.step(gradients.batch, gradients.loss)
