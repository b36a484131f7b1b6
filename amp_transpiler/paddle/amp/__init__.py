"""Mixed precision under Paddle's shorter path, `paddle.amp`, and a look at the precision of a program."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.amp import debugging as debugging
    from amp_transpiler.paddle.static.amp.decorator import decorate as decorate
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
else:
    __getattr__, __dir__ = lazy_names(__name__)
