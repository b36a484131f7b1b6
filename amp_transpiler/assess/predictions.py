"""Predicts the times of a result and of its nodes, and says what data showed of each node, for the report."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.assess.risks import risks
from amp_transpiler.conversion import convert, written_traffic
from amp_transpiler.cost import NodeCost, find_device, pays_from, predicted, prices, traffic
from amp_transpiler.cost.node_prices import Prices
from amp_transpiler.cost.shapes import open_dims
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.histogram import NO_NUMBERS
from amp_transpiler.precision.policy import Objective, Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import reason_of
from amp_transpiler.program.program import Program
from amp_transpiler.report.facts import Description, Prediction, SeenNodes
from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.record import DecisionRow, PredictedTimes
from amp_transpiler.report.wording import percent
from amp_transpiler.report.worst import squared_error_shares, worst_sources
from amp_transpiler.targets.devices import Device

__all__ = ["add_errors", "predict_times"]


def predict_times(
    described: Description,
    prepared: Program,
    policy: Policy,
    ranges: RangeFaults,
    *,
    unfused: Program | None = None,
    at_once: bool = False,
) -> Prediction:
    """Have the time of each node, and of one run in float32 and of the result, predicted as soon as it is asked for.

    A conversion takes less time than its prediction, which few callers read.

    Args:
        described: the result.
        prepared: the program before it was converted; it must not change any more.
        unfused: the same before it was fused; None if nothing was.
        policy: how it was decided, with the device, and the sizes of open dimensions.
        ranges: a look-up of constants.
        at_once: whether rows get their times now.

    Raises:
        OptionError: no input has an open dimension of a name that sizes are given for.
    """
    by_time = described.kept_float32 and policy.objective in ("balance", "time")
    lowered = functools.partial(_lowered, prepared, policy, ranges) if by_time else None
    sources = (prepared if unfused is None else unfused).model, prepared.model
    times = functools.partial(_times, described.program.model, *sources, policy, lowered)
    prices_of = functools.partial(_with_prices, prepared, policy)
    return Prediction(
        decisions=tuple(prices_of(described.decisions)) if at_once else described.decisions,
        device=find_device(policy.device).name,
        times=times() if policy.dims else times,  # at once where sizes are given, since a dimension may not exist
        prices=None if at_once else prices_of,
    )


def _lowered(prepared: Program, policy: Policy, ranges: RangeFaults) -> Program | None:
    """Return the fastest conversion, limits aside, if it has low nodes, else the smallest; None without any."""
    aims: tuple[Objective, ...] = ("time", "low")
    for objective in aims:
        program = prepared.clone()
        result = convert(program, dataclasses.replace(policy, objective=objective), ranges)
        if any(decision.precision == "low" for decision in result.assignment.decisions.values()):
            return program
    return None


def _times(
    result: ir.Model,
    source: ir.Model,
    prepared: ir.Model,
    policy: Policy,
    lowered: Callable[[], Program | None] | None,
) -> PredictedTimes:
    """Predict the times of one run, and where the result, or the one with low nodes, pays if it is slower.

    Two questions have two measures. What the user gains is told against the source as the user has it, and what fusing
    gains is a part of that. Whether lower precision pays was decided between programs that are both fused, `prepared`
    and its conversions: beside the source, what fusing gains would hide what 16 bits cost. So a model that was kept
    float32 is told by that measure.

    Args:
        result: the result.
        source: the source before it was fused.
        prepared: what was decided about; `source` itself where nothing was fused.
        policy: has the device, and the sizes of open dimensions.
        lowered: returns the best conversion with low nodes of a model that was kept float32 for the time.
    """
    device = find_device(policy.device)
    unconverted, converted = traffic(source, policy.dims, fuse=True), written_traffic(result, policy)
    if not any(cost.bytes or cost.launches for cost in unconverted):  # such as operators of ai.onnx.ml
        return PredictedTimes()
    before, after = (predicted(costs, device) for costs in (unconverted, converted))
    before_in_graph, after_in_graph = (predicted(costs, device, cuda_graph=True) for costs in (unconverted, converted))
    fused = None if prepared is source else predicted(traffic(prepared, policy.dims, fuse=True), device).milliseconds
    low, high = (result, after.milliseconds), (source, before.milliseconds)
    other = None if lowered is None else lowered()
    if other is not None:
        low = other.model, predicted(written_traffic(other.model, policy), device).milliseconds
        high = prepared, before.milliseconds if fused is None else fused
    is_slower = low[1] > high[1]
    dim = next((name for name in open_dims(prepared) if name not in policy.dims), None) if is_slower else None
    size = None if dim is None else pays_from(low[0], high[0], device, dim, policy.dims)
    return PredictedTimes(
        before.milliseconds,
        after.milliseconds,
        "" if size is None else f"{dim}={size}",
        after.basis,
        before_in_graph.milliseconds,
        after_in_graph.milliseconds,
        None if other is None else low[1],
        fused,
    )


def _with_prices(prepared: Program, policy: Policy, rows: Sequence[DecisionRow]) -> Iterator[DecisionRow]:
    """Yield the rows with bytes and predicted times."""
    priced = prices(prepared.model, policy.low, find_device(policy.device), policy.dims)
    nodes = {str(node.name): node for node in all_nodes(prepared.model)}
    return (_priced(row, nodes.get(row.name), priced) for row in rows)


def _priced(row: DecisionRow, node: ir.Node | None, priced: Prices) -> DecisionRow:
    if node is None or node not in priced.high:
        return row
    is_low = kind_of(row.precision) == "low"
    cost = (priced.costs_low if is_low else priced.costs_high)[node]
    seconds = (priced.low if is_low else priced.high)[node]
    return dataclasses.replace(
        row,
        bytes=cost.bytes,
        milliseconds=1e3 * seconds,
        milliseconds_fp32=1e3 * priced.high[node],
        bound=_bound(cost, priced.device) if seconds else "",
    )


def _bound(cost: NodeCost, device: Device) -> str:
    """Return what takes longest of a node: asking for its kernels, moving its bytes, or computing."""
    parts = {
        "launch": cost.launches * device.launch,
        "bytes": cost.bytes / (device.bandwidth * device.memory_share),
        "arithmetic": cost.flops / (device.rates[cost.rate] * device.compute_share),
    }
    return max(parts, key=lambda name: parts[name])


def add_errors(rows: Sequence[DecisionRow], prepared: Program, evidence: Evidence, policy: Policy) -> SeenNodes:
    """Return the rows of a report with errors, ranges and remedies, as data showed them, and notes on what is at risk.

    Args:
        rows: what was decided about each node.
        prepared: the program before it was converted.
        evidence: what runs on data say about it.
        policy: has the low format and the headroom.
    """
    nodes = {str(node.name): node for node in all_nodes(prepared.model)}
    values = {
        name: [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
        for name, node in nodes.items()
    }
    rows = [_with_error(row, values.get(row.name, ()), evidence) for row in rows]
    shares = squared_error_shares(rows)
    worst = {row.name: shares.get(row.name, 0.0) for row in worst_sources(rows)}
    decisions = tuple(dataclasses.replace(row, remedy=_remedy(row, worst.get(row.name), policy)) for row in rows)
    return SeenNodes(decisions, tuple(risks(decisions, nodes, evidence, policy)))


def _remedy(row: DecisionRow, share: float | None, policy: Policy) -> str:
    """Say what it would take to change the precision of a node, as far as the data tell; else nothing.

    Args:
        row: the node's, with its error and range.
        share: of the squared error, for one of the worst sources of it.
        policy: has the low format and the headroom.
    """
    if kind_of(row.precision) == "low":
        return "" if share is None else f"in float32 it would leave {percent(math.sqrt(1.0 - share))} of the error"
    if kind_of(row.precision) != "high":
        return ""
    if row.largest is not None and row.largest * policy.headroom > policy.low.max:
        if row.largest <= policy.low.max:
            return f"a headroom of at most {policy.low.max / row.largest:.3g} (--headroom), if the data are typical"
        return f"magnitudes of at most {policy.low.max / policy.headroom:.4g} at its inputs and outputs"
    if row.error and math.isfinite(row.error) and reason_of(row.reason).subject == "tolerance":
        return f"a tolerance with room for {percent(row.error)} more; errors add up in squares"
    return ""


def _with_error(row: DecisionRow, values: Sequence[str], evidence: Evidence) -> DecisionRow:
    error = evidence.node_errors.get(row.name)
    ranges = [evidence.ranges[name] for name in dict.fromkeys(values) if name in evidence.ranges]
    seen = max(ranges, key=lambda entry: entry.largest, default=None)
    return dataclasses.replace(
        row,
        error=None if error is None else math.sqrt(error),
        largest=None if seen is None else seen.largest,
        sample="" if seen is None else seen.sample,
        flushed=max((entry.flushed for entry in ranges), default=None),
        histogram=sum((entry.histogram for entry in ranges), NO_NUMBERS) if ranges else None,
    )
