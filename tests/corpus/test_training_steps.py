"""No model of the corpus is taken for a training step, and looking for one takes no time to speak of."""

import pathlib

import pytest

from amp_transpiler.conversion import fitted, prepare
from amp_transpiler.errors import ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.training import find_training_step, holds_gradients
from amp_transpiler.systems.choice import Request, choose_policy
from tests.work import counted_work

pytestmark = pytest.mark.slow


def test_no_model_is_taken_for_a_training_step(model: pathlib.Path) -> None:
    try:
        program = load(model)
        policy = fitted(choose_policy(Request()), program)
        prepare(program, policy, RangeFaults(policy.low, strict=False))
    except ModelError as error:
        pytest.skip(f"{model.name} is wrong on purpose: {error}")
    assert program.step is None
    with counted_work() as work:
        assert find_training_step(program.model) is None
        assert not holds_gradients(program.model)
    nodes = sum(1 for _ in program.model.graph.all_nodes())
    assert work.calls < 5_000 + 1_000 * nodes
