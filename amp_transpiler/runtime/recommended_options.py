"""Options that sessions of a written model should have: a table with evidence, and the choice as a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType

from amp_transpiler.runtime.provider_options import H100, Evidence

__all__ = ["DISABLED_KEY", "NO_OPTIONS", "OPTIMIZERS", "SESSION_KEY", "DisabledOptimizer", "RecommendedOptions"]

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
"""The optimizers that a file may ask sessions to leave out: by price, for each model (`assess/session_options.py`)."""


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
