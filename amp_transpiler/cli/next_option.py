"""Suggests the option that is worth a try after a conversion: the last line about a single model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.cli.options import Options
from amp_transpiler.report.headline import is_beyond_limit, slower_words
from amp_transpiler.report.verdict import Verdict

if TYPE_CHECKING:
    from amp_transpiler.cli.outcome import Outcome
    from amp_transpiler.report import Report

__all__ = ["next_option"]


def next_option(outcome: Outcome, options: Options) -> str:
    """Return the option that helps most now, with what it does; empty where none is known to."""
    report = outcome.report
    if report is None or outcome.error is not None or report.is_copy or options.copied_by is not None:
        return ""
    if report.kept_float32:
        return _for_float32(report, options)
    if faster := _faster(report, options):
        return faster
    if outcome.job.inputs is None and report.verdict_word is Verdict.PLAUSIBLE:
        return "--inputs samples.npz: compares on your data, where this rests on made-up inputs"
    if report.outputs and report.low_nodes and not (options.conversion.tolerance or options.conversion.metric):
        if report.level == "auto":
            return "--tolerance 0.1%: the best conversion within an error that you choose"
        return "--tolerance 1%: writes nothing where an output is further off"
    if options.report is None:
        return "--report report.html: a page with the graph and every node"
    return ""


def _for_float32(report: Report, options: Options) -> str:
    """Return the option that says most about a model that was kept in float32."""
    if options.conversion.prefer in ("balance", "time"):
        if report.pays_from:
            return f"--dim {report.pays_from}: if that is what you run, it gains"
        if is_beyond_limit(report):
            return "" if options.conversion.frontier else "--frontier: the error and the time of each choice"
        if report.known_times().lowered is not None:
            return "--prefer size: the smallest file, whatever it costs in time"
    return "" if options.explain else "--explain: why each node stays float32"


def _faster(report: Report, options: Options) -> str:
    """Return the option that makes a slower result faster; empty where it is not slower, or none does."""
    if (
        not slower_words(report) or options.conversion.prefer == "time" or report.level is None
    ):  # systems without levels
        return ""
    sizes = f", or --dim {report.pays_from} if that is what you run" if report.pays_from else ""
    if report.level == "auto":
        return f"--prefer time: the fastest conversion, which may be float32{sizes}"
    return f"--level auto: 16 bits unless they cost time{sizes}"
