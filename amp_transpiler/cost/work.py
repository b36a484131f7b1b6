"""Defines the work of a kernel, and the seconds that it takes: by the price list, or by a rule without a row."""

from __future__ import annotations

import dataclasses

from amp_transpiler.targets.devices import DEVICES, Device, Rate
from amp_transpiler.targets.price_list import PriceRow, price_list

__all__ = ["Work", "is_measured", "seconds_of"]

RATES: tuple[Rate, ...] = ("float32", "tf32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The work of one kernel, in one run of a node.

    Attributes:
        kernel: its name in the price list.
        format: of what it computes with: `float32`, `tf32`, `float16` or `bfloat16`; another has no price.
        elements: that it goes through.
        steps: that one block of threads takes one after another.
        flops: operations of a matrix product or convolution.
        bytes: that it reads and writes.
        count: how often it runs.
    """

    kernel: str
    format: str
    elements: int
    steps: int = 0
    flops: int = 0
    bytes: int = 0
    count: int = 1


def _row(work: Work) -> PriceRow | None:
    return price_list().rows.get((work.kernel, work.format))


def _on(work: Work, device: Device) -> Work:
    """Return the work as a device does it: a format that it has no fast products for runs like float32."""
    if work.flops and device.rates.get(_rate_of(work)) == device.rates["float32"]:
        return dataclasses.replace(work, format="float32")
    return work


def _rate_of(work: Work) -> Rate:
    return next((rate for rate in RATES if rate == work.format), "tf32")


def is_measured(work: Work) -> bool:
    """Return whether the time of a kernel follows from measured ones."""
    row = _row(work)
    return row is not None and row.counts


def seconds_of(work: Work, device: Device) -> float:
    """Return the seconds of a kernel on a device.

    On another device than that of the price list, an element takes as much longer as its memory is slower, an
    operation as its products are, and a step or a start the same.
    """
    work = _on(work, device)
    listed, row, rate = price_list(), _row(work), _rate_of(work)
    measured = DEVICES[listed.device]
    memory = measured.bandwidth / device.bandwidth
    compute = measured.rates[rate] / device.rates[rate]
    if row is None:
        moving = memory * work.bytes / listed.other_bandwidth
        computing = compute * work.flops / (listed.other_rate * measured.rates[rate] / measured.rates["float16"])
        return work.count * max(moving, computing, listed.other_least)
    serial = max(memory * row.element * work.elements, row.step * work.steps)
    computing = 0.0
    if row.rate:  # a product streams its operands and its result, at the least
        computing = max(compute * work.flops / row.rate, memory * work.bytes / listed.stream)
    return work.count * (row.start + serial + computing)
