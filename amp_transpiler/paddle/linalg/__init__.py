"""Provides `paddle.linalg`: norms, products, solutions and decompositions of vectors and matrices."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names
from amp_transpiler.paddle.framework.missing_names import why_not

if TYPE_CHECKING:
    from amp_transpiler.paddle.tensor.creation import diagonal as diagonal
    from amp_transpiler.paddle.tensor.decompositions import (
        cholesky as cholesky,
        cholesky_inverse as cholesky_inverse,
        cholesky_solve as cholesky_solve,
        det as det,
        inv as inv,
        matrix_exp as matrix_exp,
        matrix_power as matrix_power,
        qr as qr,
        slogdet as slogdet,
        solve as solve,
        triangular_solve as triangular_solve,
    )
    from amp_transpiler.paddle.tensor.linalg import (
        corrcoef as corrcoef,
        cov as cov,
        cross as cross,
        matmul as matmul,
        multi_dot as multi_dot,
        vecdot as vecdot,
        vector_norm as vector_norm,
    )
    from amp_transpiler.paddle.tensor.packed import (
        householder_product as householder_product,
        lu as lu,
        lu_solve as lu_solve,
        lu_unpack as lu_unpack,
        ormqr as ormqr,
    )
    from amp_transpiler.paddle.tensor.reduction import norm as norm
    from amp_transpiler.paddle.tensor.shaping import matrix_transpose as matrix_transpose
    from amp_transpiler.paddle.tensor.spectra import (
        cond as cond,
        eigh as eigh,
        eigvalsh as eigvalsh,
        lstsq as lstsq,
        matrix_norm as matrix_norm,
        matrix_rank as matrix_rank,
        pca_lowrank as pca_lowrank,
        pinv as pinv,
        svd as svd,
        svd_lowrank as svd_lowrank,
        svdvals as svdvals,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__, why_not)
