"""Mixed precision under Paddle's shorter path, `paddle.amp`: names of `static.amp`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.static.amp import debugging as debugging
    from amp_transpiler.paddle.static.amp.decorator import decorate as decorate
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
else:
    __getattr__, __dir__ = lazy_names(__name__)
