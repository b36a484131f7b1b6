"""Questions about recurrent layers: one step, and many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from amp_transpiler.graph.dtypes import BFLOAT16, LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding, sigmoid
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["recurrent"]

_BATCH, _INPUT, _HIDDEN = 2, 16, 32
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

Step = Callable[[Callable[[Array], Array], Array, Array, tuple[Array, Array]], tuple[Array, Array]]
"""Returns h and c from rounding, the products of input and state for each gate, and the old h and c."""


def _lstm(
    r: Callable[[Array], Array], of_input: Array, of_state: Array, old: tuple[Array, Array]
) -> tuple[Array, Array]:
    enter, leave, forget, cell = np.split(r(of_input + of_state), 4, -1)
    state = r(r(r(sigmoid(forget)) * old[1]) + r(r(sigmoid(enter)) * r(np.tanh(cell))))
    return r(r(sigmoid(leave)) * r(np.tanh(state))), state


def _gru(
    r: Callable[[Array], Array], of_input: Array, of_state: Array, old: tuple[Array, Array]
) -> tuple[Array, Array]:
    (update, reset, fresh), (update_state, reset_state, fresh_state) = (
        np.split(of_input, 3, -1),
        np.split(of_state, 3, -1),
    )
    share = r(sigmoid(r(update + update_state)))
    candidate = r(np.tanh(r(fresh + r(r(sigmoid(r(reset + reset_state))) * fresh_state))))
    return r(r((1 - share) * candidate) + r(share * old[0])), old[1]


def _rnn(
    r: Callable[[Array], Array], of_input: Array, of_state: Array, old: tuple[Array, Array]
) -> tuple[Array, Array]:
    return r(np.tanh(r(of_input + of_state))), old[1]


_STEPS: Mapping[str, Step] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _run(step: Step, r: Callable[[Array], Array], x: Array, w: Array, rec: Array, b: Array) -> Array:
    of_inputs, of_states = np.split(b[0], 2)
    zeros = np.zeros((_BATCH, _HIDDEN))
    state, results = (zeros, zeros), []
    for row in x:
        products = r(row @ w[0].T + of_inputs), r(state[0] @ rec[0].T + of_states)
        state = step(r, *products, state)
        results.append(state[0])
    return np.stack(results)[:, None]


def _float32(step: Step) -> Candidate:
    return lambda r, x, w, rec, b: r(_run(step, lambda values: values, x, w, rec, b))


def _state_low(step: Step) -> Candidate:
    def run(r: Rounding, x: Array, w: Array, rec: Array, b: Array) -> Array:
        def rounded(
            _: Callable[[Array], Array], of_input: Array, of_state: Array, old: tuple[Array, Array]
        ) -> tuple[Array, Array]:
            hidden, cell = step(lambda values: values, of_input, of_state, old)
            return r(hidden), r(cell)

        return _run(rounded, lambda values: values, x, w, rec, b)

    return run


def _steps_low(step: Step) -> Candidate:
    return lambda r, x, w, rec, b: _run(step, r, x, w, rec, b)


def recurrent(low: LowFormat) -> Questions:
    """Yield LSTM, GRU and RNN, over one step and over 20; cuDNN has them in float16 and float32."""
    if low is BFLOAT16:
        return
    random = np.random.default_rng(9)
    for op, gates in _GATES.items():
        attributes = f"hidden_size = {_HIDDEN}" + (", linear_before_reset = 1" if op == "GRU" else "")
        step = _STEPS[op]
        for length in (1, 20):
            yield Question(
                "recurrent",
                op,
                f"steps={length}",
                low,
                f"y = {op} <{attributes}> (x, w, rec, b)",
                {"x": random.standard_normal((length, _BATCH, _INPUT))},
                {SINGLE: _float32(step), "state low": _state_low(step), "every step low": _steps_low(step)},
                {
                    "w": 0.2 * random.standard_normal((1, gates * _HIDDEN, _INPUT)),
                    "rec": 0.2 * random.standard_normal((1, gates * _HIDDEN, _HIDDEN)),
                    "b": 0.1 * random.standard_normal((1, 2 * gates * _HIDDEN)),
                },
                opset=22,
            )
