"""The cost of a program on a GPU, from its shapes: bytes and FLOPs of every node, launches, and predicted time."""

from amp_transpiler.precision.cost.prediction import (
    Kernel,
    Prediction,
    node_seconds,
    pays_from,
    predict,
    predicted,
    time_of,
)
from amp_transpiler.precision.cost.prices import Prices, prices
from amp_transpiler.precision.cost.shapes import open_dims
from amp_transpiler.precision.cost.traffic import NodeCost, traffic
from amp_transpiler.targets.devices import DEVICES, Device, find_device

__all__ = [
    "DEVICES",
    "Device",
    "Kernel",
    "NodeCost",
    "Prediction",
    "Prices",
    "find_device",
    "node_seconds",
    "open_dims",
    "pays_from",
    "predict",
    "predicted",
    "prices",
    "time_of",
    "traffic",
]
