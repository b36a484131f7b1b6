"""Reports a conversion: holds the record, and its forms as a table, an explanation, JSON and HTML."""

from amp_transpiler.report.comparison import OutputComparison
from amp_transpiler.report.drawn import DeviceDraws
from amp_transpiler.report.measured import DeviceMeasurement
from amp_transpiler.report.record import (
    CastRow,
    DecisionRow,
    FrontierPoint,
    MetricValue,
    PredictedTimes,
)
from amp_transpiler.report.report import Report
from amp_transpiler.report.steps import StateWay, StepsComparison
from amp_transpiler.report.verdict import Verdict

__all__ = [
    "CastRow",
    "DecisionRow",
    "DeviceDraws",
    "DeviceMeasurement",
    "FrontierPoint",
    "MetricValue",
    "OutputComparison",
    "PredictedTimes",
    "Report",
    "StateWay",
    "StepsComparison",
    "Verdict",
]
