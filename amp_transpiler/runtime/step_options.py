"""The options of a step that an executor compiles: how it is computed, and how its session is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import get_args

from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.runtime.gemm_options import TilingAccum, check_tiling_accum
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.provider_options import refuse_options
from amp_transpiler.training_passes import Formulation

__all__ = ["StepOptions"]

# Options of the CUDA provider that an executor decides itself, and what to do instead of giving them.
_OWN = {
    "device_id": "give the place, as in CUDAPlace(1)",
    "enable_cuda_graph": "give cuda_graph=True",
    "has_user_compute_stream": "the steps of all executors on a device have one stream",
    "user_compute_stream": "the steps of all executors on a device have one stream",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How steps are computed. `amp_transpiler.paddle.static.Executor` explains each.

    Attributes:
        emulate: on the CPU, compute low values in float32 and round them.
        tiling_accum: on CUDA, the type that float16 matrix products accumulate in.
        recompute: whether the backward pass computes cheap activations again.
        weight_gradients: the formulation of convolutions' weight gradients.
        cuda_graph: whether steps are run as CUDA graphs if possible.
        in_place: whether steps that are run as CUDA graphs write state where it lies, if possible.
        provider_options: options of ONNX Runtime's CUDA provider, over those of `provider_options.CUDA_OPTIONS`, but
            none of `REFUSED_OPTIONS`.
    """

    emulate: bool = True
    tiling_accum: TilingAccum = "fp32"
    recompute: bool = False
    weight_gradients: Formulation = "auto"
    cuda_graph: bool = False
    in_place: bool = False
    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check(self, place: Place) -> None:
        """Check that each option exists, on a place.

        Raises:
            OptionError: one has a value that it cannot have, or needs another, or a provider option is the executor's
                own.
            EnvironmentProblem: one is for CUDA only, and the place is another.
        """
        check_tiling_accum(self.tiling_accum, place)
        if self.weight_gradients not in (known := get_args(Formulation)):
            raise OptionError(f"weight_gradients must be one of {known}, got {self.weight_gradients!r}")
        if self.in_place and not self.cuda_graph:
            raise OptionError("in_place=True is for steps that are run as CUDA graphs: give cuda_graph=True, too")
        if self.provider_options and not place.has_provider_options:
            raise EnvironmentProblem(
                f"provider_options is for ONNX Runtime's CUDA provider, but this runs on {place}: leave it out"
            )
        for name in self.provider_options:
            if name in _OWN:
                raise OptionError(f"provider_options: {name} is the executor's to set: {_OWN[name]}")
        refuse_options({name: str(value) for name, value in self.provider_options.items()}, ("step",))

    def formulation(self, place: Place) -> Formulation:
        """Return the formulation of weight gradients on a place."""
        return "priced" if self.weight_gradients == "auto" and not place.emulates_low else self.weight_gradients

    def provider(self, place: Place) -> tuple[tuple[str, str], ...]:
        """Return the provider options of a session of a step, as pairs."""
        caller_options = {name: str(value) for name, value in self.provider_options.items()}
        return tuple({**place.options_for("step"), **caller_options}.items())
