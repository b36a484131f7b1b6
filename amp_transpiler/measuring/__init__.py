"""Measures models and training steps where they run: latency, memory, time per operator."""

from amp_transpiler.wheels import require_runtime

require_runtime()  # every module here imports it: this says what is missing
