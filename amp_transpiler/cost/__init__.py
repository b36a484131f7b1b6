"""Predicts the cost of a program on a GPU from its shapes: bytes and FLOPs of every node, launches, and time."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.cost.node_costs import NodeCost as NodeCost, traffic as traffic
    from amp_transpiler.cost.node_prices import Prices as Prices, prices as prices
    from amp_transpiler.cost.prediction import (
        Kernel as Kernel,
        Prediction as Prediction,
        node_seconds as node_seconds,
        pays_from as pays_from,
        predict as predict,
        predicted as predicted,
        time_of as time_of,
    )
    from amp_transpiler.cost.shapes import open_dims as open_dims
    from amp_transpiler.targets.devices import DEVICES as DEVICES, Device as Device, find_device as find_device
else:
    __getattr__, __dir__ = lazy_names(__name__)
