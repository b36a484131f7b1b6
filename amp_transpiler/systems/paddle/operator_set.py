"""A list of operators that answers to ONNX's names and to Paddle's."""

from __future__ import annotations

from collections.abc import Iterable, Set as AbstractSet

from amp_transpiler.ops.vocabulary import paddle_names

__all__ = ["OperatorSet"]


class OperatorSet(set[str]):
    """Operators by ONNX's names, which may be asked for and edited by Paddle's names too.

    Paddle's `conv2d` is ONNX's `Conv`, and `pool2d` is four operators. A name of Paddle's is in the set if all of its
    operators are. Names that ONNX has no operator for are kept as they are.

        lists.white_list                      # {"Conv", "Gemm", "MatMul", ...}
        "conv2d" in lists.white_list          # True
        lists.white_list.paddle()             # {"conv2d", "matmul_v2", ...}
    """

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        operators = _operators(name)
        return bool(operators) and all(map(super().__contains__, operators))

    def __eq__(self, other: object) -> bool:
        """Whether these are the same operators, in ONNX's names or in Paddle's."""
        return super().__eq__(other) or self.paddle() == other

    __hash__ = None  # a set can be changed, so Python gives it no hash either

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __or__(self, other: AbstractSet[str]) -> OperatorSet:  # type: ignore[override]  # names are all there is
        union = OperatorSet(self)
        union.update(other)
        return union

    def add(self, name: str) -> None:
        """Add an operator, or all that one of Paddle's names stands for."""
        super().update(_operators(name) or (name,))

    def discard(self, name: object) -> None:
        """Take an operator out, or all that one of Paddle's names stands for."""
        super().difference_update((name, *_operators(name)))

    def remove(self, name: str) -> None:
        """Take an operator out, or all that one of Paddle's names stands for.

        Raises:
            KeyError: it is not in the set.
        """
        if name not in self:
            raise KeyError(name)
        self.discard(name)

    def update(self, *others: Iterable[str]) -> None:
        """Add operators, by ONNX's names or Paddle's."""
        for other in others:
            for name in other:
                self.add(name)

    def paddle(self) -> frozenset[str]:
        """Return the names of Paddle's operators that are in the set."""
        return frozenset(name for name in paddle_names() if _operators(name) and name in self)


def _operators(name: object) -> tuple[str, ...]:
    """Return the operators that one of Paddle's names stands for; nothing for other names."""
    return paddle_names().get(name, ()) if isinstance(name, str) else ()
