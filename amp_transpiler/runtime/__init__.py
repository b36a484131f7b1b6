"""Running programs: places, sessions on ONNX Runtime, training steps, latency and memory."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names
from amp_transpiler.wheels import require_runtime

require_runtime()  # every module here imports it: this says what is missing

if TYPE_CHECKING:
    from amp_transpiler.runtime.places import (
        CPUPlace as CPUPlace,
        CUDAPlace as CUDAPlace,
        Place as Place,
        default_place as default_place,
    )
    from amp_transpiler.runtime.session import Session as Session
else:
    __getattr__, __dir__ = lazy_names(__name__)
