"""The report as a record; its table, JSON and HTML forms are in the modules beside this one."""

from amp_transpiler.report.report import DecisionRow, OutputComparison, Report

__all__ = ["DecisionRow", "OutputComparison", "Report"]
