"""The lists that a user gives in addition to a system's own tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet

__all__ = ["UserLists"]


@dataclasses.dataclass(eq=False)  # not frozen: Paddle's lists, a subclass, are changed in place by their users
class UserLists:
    """Operators and values that the user has decided about, whatever the system's tables say.

    Operators are named as in ONNX (`Conv`, `com.microsoft::BiasGelu`), or by a finer class (`Conv[depthwise]`).

    Attributes:
        custom_white_list: operators that run in lower precision wherever they can.
        custom_black_list: operators that stay float32.
        black_varnames: names of values. A node that reads or writes one of them stays float32.
    """

    custom_white_list: AbstractSet[str] = frozenset()
    custom_black_list: AbstractSet[str] = frozenset()
    black_varnames: AbstractSet[str] = frozenset()
