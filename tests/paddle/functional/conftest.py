"""Results of all cases of a module, computed once."""

from tests.paddle.tensor.conftest import computed

__all__ = ["computed"]
