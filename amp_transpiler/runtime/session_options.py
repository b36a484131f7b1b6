"""Options that a written model is opened with: kept in its metadata, and as code for sessions without this package."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from types import MappingProxyType

import onnx
import onnx_ir as ir

from amp_transpiler.program.program import Program
from amp_transpiler.runtime.evidence import H100, Evidence

__all__ = [
    "DISABLED_KEY",
    "NO_OPTIONS",
    "OPTIMIZERS",
    "SESSION_KEY",
    "DisabledOptimizer",
    "RecommendedOptions",
    "session_options",
]

_logger = logging.getLogger(__name__)

SESSION_KEY = "amp_transpiler.session_options"  # JSON in a model's metadata: keys of a session's configuration
DISABLED_KEY = "optimization.disable_specified_optimizers"  # ONNX Runtime's, of names with semicolons between them


@dataclasses.dataclass(frozen=True, slots=True)
class DisabledOptimizer:
    """A row of the table: an optimizer of ONNX Runtime that some models are faster without.

    Attributes:
        name: ONNX Runtime's name.
        why: the reason.
        evidence: where a session without it was seen to be right, and to pay.
    """

    name: str
    why: str
    evidence: Evidence


OPTIMIZERS: Mapping[str, DisabledOptimizer] = MappingProxyType(
    {
        row.name: row
        for row in (
            DisabledOptimizer(
                "MatMulAddFusion",
                "it makes a Gemm of a product and its bias, which spreads the bias in a kernel of its own and keeps it "
                "from the kernel of the GELU or normalisation behind it",
                H100("the same outputs in four runs of four networks in both formats; BERT at batch 8 in float32 in "
                     "2.42 ms instead of 2.78, and in float16 in 2.08 instead of 2.13"),
            ),
        )
    }
)  # fmt: skip
"""What a file may ask sessions to leave out; by price, for each model (`assess/session_options.py`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecommendedOptions:
    """The options that sessions of a model on ONNX Runtime's CUDA provider should have beside the default ones.

    Attributes:
        disabled: names of ONNX Runtime's optimizers to switch off, of `OPTIMIZERS`.
    """

    disabled: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.disabled)

    @property
    def entries(self) -> dict[str, str]:
        """The entries of `onnxruntime.SessionOptions`: key -> value for `add_session_config_entry`."""
        return {DISABLED_KEY: ";".join(self.disabled)} if self.disabled else {}

    @property
    def why(self) -> dict[str, str]:
        """The reason of each optimizer that is switched off, with its evidence."""
        return {name: f"{OPTIMIZERS[name].why} ({OPTIMIZERS[name].evidence})" for name in self.disabled}

    def code(self, path: str) -> str:
        """Return Python that opens a file with these options and nothing but `onnxruntime`: at most three lines."""
        lines = [
            "options = onnxruntime.SessionOptions()",
            *(f"options.add_session_config_entry({key!r}, {value!r})" for key, value in self.entries.items()),
        ]
        second = "options, " if self else ""
        opened = f"session = onnxruntime.InferenceSession({path!r}, {second}providers=['CUDAExecutionProvider'])"
        return "\n".join([*(lines if self else ()), opened])

    def as_metadata(self) -> str:
        """Return the text that a model's metadata have under `SESSION_KEY`."""
        return json.dumps(self.entries)


NO_OPTIONS = RecommendedOptions()


def session_options(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model | Program) -> RecommendedOptions:
    """Return what a model's metadata say of its sessions; no options where they say nothing.

    Names that this package does not write are left out: a file cannot have its sessions do anything else.

    Args:
        model: a file, a message, an `onnx_ir.Model` or a program.
    """
    text = _metadata(model).get(SESSION_KEY, "{}")
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        _logger.warning("metadata '%s' of the model is no JSON object, and is not used", SESSION_KEY)
        return NO_OPTIONS
    names = str(entries.get(DISABLED_KEY, "")).split(";")
    return RecommendedOptions(tuple(name for name in names if name in OPTIMIZERS))


def _metadata(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model | Program) -> Mapping[str, str]:
    if isinstance(model, onnx.ModelProto):
        return {entry.key: entry.value for entry in model.metadata_props}
    if isinstance(model, ir.Model):
        return model.metadata_props
    if isinstance(model, Program):
        return model.model.metadata_props
    from amp_transpiler.files.loading import load  # of a file

    return load(model).model.metadata_props
