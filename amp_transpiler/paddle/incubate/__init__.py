"""`paddle.incubate`: has wrappers of optimizers, and averages."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.incubate import optimizer as optimizer
    from amp_transpiler.paddle.incubate.wrappers import LookAhead as LookAhead
    from amp_transpiler.paddle.static.averages import ModelAverage as ModelAverage
else:
    __getattr__, __dir__ = lazy_names(__name__)
