"""Statements of the project's own description that no other test shows."""

import math

import pytest

from amp_transpiler.systems.choice import Request, choose_policy

TOLERANCES = {
    # what is asked for: the tolerance where the user sets none
    "auto, float16": ({"level": "auto", "dtype": "float16"}, 0.02),
    "auto, bfloat16": ({"level": "auto", "dtype": "bfloat16"}, 0.05),
    "O1": ({"level": "O1"}, math.inf),
    "O2": ({"level": "O2"}, math.inf),
    "a policy": ({"policy": "torch"}, math.inf),
    "a preset": ({"preset": "mp4"}, math.inf),
}


@pytest.mark.parametrize("name", TOLERANCES)
def test_level_auto_alone_has_a_tolerance_by_format(name):
    asked, expected = TOLERANCES[name]
    assert choose_policy(Request(**asked)).limits.tolerance == expected
