"""Questions about attention: sizes of heads, a mask, and values of the past."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding, softmax
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["attention"]

# Sizes of a head and of a head's values, values of the past, whether there is a mask. The last ones are those whose
# kernels may touch memory that is not theirs.
_CASES = (
    (8, 8, 0, False),
    (64, 64, 0, False),
    (8, 8, 0, True),
    (64, 64, 0, True),
    (8, 8, 6, False),
    (8, 12, 6, False),
    (8, 10, 6, False),
    (10, 10, 6, False),
)
_HEADS, _TOKENS = 2, 4


def _attended(r: Rounding, inputs: Mapping[str, Array], how: str) -> Array:
    keys, values = inputs["k"], inputs["v"]
    if "pk" in inputs:
        keys, values = np.concatenate([inputs["pk"], keys], 2), np.concatenate([inputs["pv"], values], 2)
    scores = inputs["q"] @ keys.swapaxes(2, 3) / np.sqrt(keys.shape[-1]) + inputs.get("m", 0.0)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    if how == "flash":
        return r(r(shares) @ values / shares.sum(-1, keepdims=True))
    if how == "steps":
        return r(r(softmax(r(scores))) @ values)
    return r(r(softmax(scores)) @ values if how == "shares low" else softmax(scores) @ values)


def _candidate(how: str) -> Candidate:
    return lambda r, **inputs: _attended(r, inputs, how)


_CANDIDATES = {name: _candidate(name) for name in (SINGLE, "flash", "shares low", "steps")}


def attention(low: LowFormat) -> Questions:
    """Yield attention in every case."""
    random = np.random.default_rng(6)
    for head, value, past, masked in _CASES:
        inputs = {
            "q": random.standard_normal((1, _HEADS, _TOKENS, head)),
            "k": random.standard_normal((1, _HEADS, _TOKENS, head)),
            "v": random.standard_normal((1, _HEADS, _TOKENS, value)),
        }
        if masked:
            inputs["m"] = random.standard_normal((_TOKENS, _TOKENS))
        if past:
            inputs["pk"] = random.standard_normal((1, _HEADS, past, head))
            inputs["pv"] = random.standard_normal((1, _HEADS, past, value))
        read = 'q, k, v, "", pk, pv' if past else ", ".join(inputs)
        condition = f"heads of {head}/{value}, {past} of the past, {'a' if masked else 'no'} mask"
        body = f"{'y, keys, values' if past else 'y'} = Attention ({read})"
        yield Question("attention", "Attention", condition, low, body, inputs, _CANDIDATES, opset=23)
