"""`paddle.linalg`: norms, and products of vectors and matrices."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.tensor.creation import diagonal as diagonal
    from amp_transpiler.paddle.tensor.linalg import (
        corrcoef as corrcoef,
        cov as cov,
        cross as cross,
        matmul as matmul,
        matrix_power as matrix_power,
        multi_dot as multi_dot,
        vecdot as vecdot,
        vector_norm as vector_norm,
    )
    from amp_transpiler.paddle.tensor.reduction import norm as norm
    from amp_transpiler.paddle.tensor.shaping import matrix_transpose as matrix_transpose
else:
    __getattr__, __dir__ = lazy_names(__name__)
