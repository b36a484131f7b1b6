"""Names of Paddle that a static program cannot have say so when they are called."""

import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle import nn, optimizer, static
from amp_transpiler.paddle.framework.refusals import Refusal
from amp_transpiler.paddle.nn.layer import unavailable as of_layers
from amp_transpiler.paddle.static import unavailable as of_static

ALL = [getattr(module, name) for module in (of_layers, of_static) for name in module.__all__]


@pytest.mark.parametrize("refused", [*ALL, optimizer.LBFGS, nn.Parameter], ids=repr)
def test_a_refused_name_says_why(refused):
    assert isinstance(refused, Refusal)
    assert refused.__doc__.startswith("Refused: ")
    with pytest.raises(OptionError, match=rf"^paddle.{refused.name} is not available: \S"):
        refused(1, name="x")


def test_refused_names_are_where_paddle_has_them():
    assert static.py_func is static.nn.py_func
    assert nn.BeamSearchDecoder.name == "nn.BeamSearchDecoder"
    assert static.nn.sequence_pool.name == "static.nn.sequence_pool"
