"""Turns conversions into findings, for the writers of `--check`: what failed, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from amp_transpiler.cli.check.finding import Checked, Finding, Rule
from amp_transpiler.cli.exit_status import CHECK_FAILED, INTERNAL_ERROR, WRONG_INPUT

if TYPE_CHECKING:
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["CONVERSION_RULES", "checked_conversions"]

CONVERSION_RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "check-failed",
            "error",
            "the result failed its check or its tolerance, so that no model was written",
            "allow a larger --tolerance, or keep nodes in float32 with --disable-amp",
        ),
        Rule(
            "wrong-input",
            "error",
            "the model, its samples, an option or the output place is wrong",
            "see the message",
        ),
        Rule("internal", "error", "the conversion itself failed", "please report this"),
        Rule(
            "slower",
            "warning",
            "the result is predicted slower than float32",
            "convert at level auto with --prefer time, or ship the float32 model",
        ),
        Rule("warned", "warning", "the result looks wrong, although no limit forbids it", "see the message"),
    )
}
"""Name -> rule of a conversion."""

_BY_STATUS = {CHECK_FAILED: "check-failed", WRONG_INPUT: "wrong-input", INTERNAL_ERROR: "internal"}


def checked_conversions(outcomes: Sequence[Outcome]) -> Checked:
    """Return the outcomes of a call as the writers of `--check` take them."""
    return Checked(
        tuple(str(outcome.job.model) for outcome in outcomes),
        tuple(finding for outcome in outcomes for finding in _findings(outcome)),
        "error",
        rules=CONVERSION_RULES,
        title="amp-transpile",
        seconds={str(outcome.job.model): outcome.report.seconds for outcome in outcomes if outcome.report is not None},
        skipped={
            str(outcome.job.model): f"unchanged since it was {outcome.skipped.record['verdict']}"
            for outcome in outcomes
            if outcome.skipped is not None
        },
    )


def _findings(outcome: Outcome) -> Iterator[Finding]:
    path = str(outcome.job.model)
    if outcome.error is not None:
        yield Finding(path, _BY_STATUS[outcome.status], outcome.error.removeprefix(f"{path}: "))
    report = outcome.report
    if report is None or outcome.error is not None:
        return
    from amp_transpiler.report.headline import slower_words

    if slower := slower_words(report):
        yield Finding(path, "slower", slower)
    for warning in report.warnings:
        yield Finding(path, "warned", warning)
