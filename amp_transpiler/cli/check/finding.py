"""The rules that a model repository is checked by, and the record of a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from amp_transpiler.files.model_file import LFS_REMEDY

__all__ = ["RULES", "SEVERITIES", "Checked", "Finding", "Rule", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the worst to the mildest."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for.

    Attributes:
        name: its name, for `--ignore`.
        severity: how bad it is.
        title: what is wrong, in a few words.
        remedy: what to do.
    """

    name: str
    severity: Severity
    title: str
    remedy: str


RULES = {
    rule.name: rule
    for rule in (
        Rule("lfs-pointer", "error", "the file is a pointer of Git LFS, not the model", LFS_REMEDY),
        Rule("unreadable", "error", "the file cannot be read as ONNX", "export or download the model again"),
        Rule(
            "mixed-types",
            "error",
            "an operator reads types that its schema does not permit together",
            "convert the float32 source again with amp-transpile; onnx.checker overlooks this unless asked in full",
        ),
        Rule("invalid", "error", "onnx.checker and ONNX Runtime both refuse the model", "export the model again"),
        Rule("refused", "error", "ONNX Runtime does not open the model", "export the model again"),
        Rule("internal", "error", "the check itself failed", "please report this"),
        Rule(
            "stale",
            "error",
            "a 16-bit model has other weights than the float32 model beside it",
            "run amp-transpile on the float32 model again",
        ),
        Rule(
            "overflow",
            "error",
            "a weight is infinite in 16 bits and finite in float32",
            "convert with amp-transpile, which keeps such weights in float32, or use bfloat16",
        ),
        Rule(
            "doubtful",
            "warning",
            "onnx.checker, asked in full, refuses what ONNX Runtime opens",
            "export the model again, since other tools may refuse it",
        ),
        Rule(
            "other-interface",
            "warning",
            "a 16-bit model has other inputs or outputs than the float32 model beside it",
            "run amp-transpile on the float32 model again, or name the file after its own source",
        ),
        Rule("not-finite", "warning", "a weight holds NaN", "train or export the model again"),
        Rule(
            "slower",
            "warning",
            "a 16-bit model is predicted slower than the float32 one",
            "convert with amp-transpile --prefer time, or ship only the float32 model",
        ),
        Rule(
            "pays", "note", "a float32 model without a 16-bit one would be faster in 16 bits", "run amp-transpile on it"
        ),
    )
}
"""Name -> rule, in the order in which a file is looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    Attributes:
        path: the file, as it was named or found.
        rule: which rule.
        message: what was found there, with the remedy.
    """

    path: str
    rule: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check.

    Attributes:
        models: the files looked at.
        findings: what was found, by file.
        fails_on: the mildest severity that fails the check; None: none does.
        rules: name -> rule, those that were looked at.
        title: what looked: the command with its option.
        seconds: file -> how long it took, where that is reported.
        skipped: file -> why it was not looked at.
    """

    models: tuple[str, ...]
    findings: tuple[Finding, ...]
    fails_on: Severity | None
    rules: Mapping[str, Rule] = dataclasses.field(default_factory=lambda: RULES)
    title: str = "amp-transpile --check"
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def fails(self, finding: Finding) -> bool:
        """Whether a finding fails the check."""
        if self.fails_on is None:
            return False
        return SEVERITIES.index(self.severity_of(finding)) <= SEVERITIES.index(self.fails_on)

    def severity_of(self, finding: Finding) -> Severity:
        """How bad a finding is."""
        return self.rules[finding.rule].severity

    @property
    def has_failed(self) -> bool:
        """Whether any finding fails the check."""
        return any(map(self.fails, self.findings))
