"""The operator lists behind levels OD, O1 and O2, and Paddle's rules for changing them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Set as AbstractSet

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.graph.name_matching import is_pattern
from amp_transpiler.ops.schema import newest_opset, signature
from amp_transpiler.ops.vocabulary import finer_classes, known_operator, near_operators, paddle_names
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS, Colour
from amp_transpiler.systems.paddle.operator_set import OperatorSet
from amp_transpiler.targets import CUDA

__all__ = ["AutoMixedPrecisionLists"]

logger = logging.getLogger(__name__)


def _default(colour: Colour) -> frozenset[str]:
    return frozenset(key for key, (default, _) in DEFAULT_COLOURS.items() if default is colour)


DEFAULT_WHITE = _default(Colour.WHITE)
DEFAULT_BLACK = _default(Colour.BLACK)
DEFAULT_GRAY = _default(Colour.GRAY)
DEFAULT_EXTRA_BLACK = _default(Colour.UNSUPPORTED)


class AutoMixedPrecisionLists(UserLists):
    """The operators that are always low, always float32, or follow their producers.

    Names are ONNX's (`Conv`, `com.microsoft::BiasGelu`) or Paddle's (`conv2d`, `pool2d`), which stand for one or more
    ONNX operators. A few operators have finer classes (`Conv[depthwise]`, `Conv[3d]`, `Gather[embedding]`,
    `MaxPool[indices]`, `Pow[scalar]`). A plain ONNX name covers its classes too, unless one is listed itself; `conv2d`
    is only `Conv`. An unknown name is kept, with a warning: it may be an operator of a custom domain. For `transpile`,
    a pattern such as `Reduce.*` stands for the operators whose whole name it matches.

    Both formats use the same lists, as in Paddle's static AMP. They hold ONNX's names, and answer to Paddle's too
    (`OperatorSet`).

    Attributes:
        white_list: operators that are low at every level.
        black_list: operators that are float32 for numerical reasons, with the extra list and the user's.
        gray_list: operators that follow their producers at O1.
        unsupported_list: operators that O2 does not lift with the black list: the extra list, and the user's black
            list.
        extra_black_list: interpolation, embeddings, scatters. Their parameters may be low, unlike those of operators
            on the user's black list.
        black_varnames: a node that reads or writes one of these values is float32.
        dtype: `float16` or `bfloat16`.

    Args:
        custom_white_list: operators to move to the white list.
        custom_black_list: operators to move to the black list; they stay float32 at every level.
        custom_black_varnames: names of values.
        dtype: the low format.

    Raises:
        OptionError: (a ValueError) `dtype` is neither format, or an operator is on both custom lists.
    """

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
        dtype: str = "float16",
    ) -> None:
        self.dtype: str = low_format(dtype).name
        self.white_list: OperatorSet = OperatorSet(DEFAULT_WHITE)
        self.black_list: OperatorSet = OperatorSet(DEFAULT_BLACK | DEFAULT_EXTRA_BLACK)
        self.gray_list: OperatorSet = OperatorSet(DEFAULT_GRAY)
        self.extra_black_list: OperatorSet = OperatorSet(DEFAULT_EXTRA_BLACK)
        self.unsupported_list: OperatorSet = OperatorSet(DEFAULT_EXTRA_BLACK)
        white, wide_white = _resolve(_names(custom_white_list, "custom_white_list"))
        black, wide_black = _resolve(_names(custom_black_list, "custom_black_list"))
        _check_overlap(white, black)
        super().__init__(
            custom_white_list=white | (wide_white - black),
            custom_black_list=black | (wide_black - white),
            black_varnames=set(_names(custom_black_varnames, "custom_black_varnames")),
        )
        _move(self, self.custom_white_list, self.custom_black_list)
        self._warn_of_missing_kernels(white)

    def __repr__(self) -> str:
        white, black = sorted(self.custom_white_list), sorted(self.custom_black_list)
        return f"AutoMixedPrecisionLists({white}, {black}, {sorted(self.black_varnames)}, {self.dtype!r})"

    def replaced(
        self, white: AbstractSet[str], black: AbstractSet[str], black_varnames: AbstractSet[str]
    ) -> AutoMixedPrecisionLists:
        """Return lists in which other operators and values stand in the place of the custom ones.

        Args:
            white: operators; those that were not custom white ones yet are moved to the white list.
            black: the same for the black list.
            black_varnames: names of values.

        Raises:
            OptionError: an operator is on both lists.
        """
        before_white, before_black = set(self.custom_white_list), set(self.custom_black_list)
        if (white, black, black_varnames) == (before_white, before_black, set(self.black_varnames)):
            return self
        _check_overlap(white, black)
        lists = copy.deepcopy(self)
        for key in (before_white - white) | (before_black - black):  # a pattern, which is no operator
            for keys in (lists.white_list, lists.black_list, lists.unsupported_list):
                keys.discard(key)
        lists.custom_white_list, lists.custom_black_list = set(white), set(black)
        lists.black_varnames = set(black_varnames)
        _move(lists, white - before_white, black - before_black)
        return lists

    def _warn_of_missing_kernels(self, white: Iterable[str]) -> None:
        for key in sorted(white):
            domain, _, op_type = key.partition("[")[0].rpartition("::")
            formal = signature(domain, op_type, newest_opset())
            if formal is None or formal.has_function or CUDA.table.mentions(domain, op_type, self.dtype):
                continue  # a custom operator, one decided by its function body, or one with a kernel
            logger.warning("custom white list: %s has no %s kernel on CUDA and stays float32 there", key, self.dtype)


def _move(lists: AutoMixedPrecisionLists, white: AbstractSet[str], black: AbstractSet[str]) -> None:
    """Move custom operators as Paddle does: white ones first, each out of the one list that it is on."""
    for key in white:
        if key in lists.black_list:
            lists.black_list.discard(key)
            lists.extra_black_list.discard(key)
            lists.unsupported_list.discard(key)
        else:
            lists.gray_list.discard(key)
        lists.white_list.add(key)
    for key in black:
        if key in lists.white_list:
            lists.white_list.discard(key)
        else:
            lists.gray_list.discard(key)
        lists.extra_black_list.discard(key)  # the user's list keeps parameters float32 too
        lists.black_list.add(key)
        lists.unsupported_list.add(key)


def _check_overlap(white: AbstractSet[str], black: AbstractSet[str]) -> None:
    if both := sorted(white & black):
        raise OptionError(
            f"custom white list overlaps custom black list: {', '.join(both)} in both; leave it in one of them"
        )


def _names(names: Iterable[str] | None, argument: str) -> Iterable[str]:
    if isinstance(names, str):
        raise OptionError(f"{argument}: expected a set or list of names, got the string {names!r}; write [{names!r}]")
    return names or ()


def _resolve(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operators that the names stand for, and the finer classes that plain ONNX names cover."""
    resolved: set[str] = set()
    finer: set[str] = set()
    for listed in names:
        name = listed.removeprefix("ai.onnx::")
        if (operators := paddle_names().get(name)) is not None:
            if not operators:
                logger.warning("%s has no counterpart in ONNX; listing it has no effect", name)
            resolved.update(operators or (name,))
            continue
        if not known_operator(name) and not is_pattern(name):
            near = near_operators(name)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            logger.warning("%s is neither an operator of ONNX or ONNX Runtime nor a known alias%s", name, hint)
        resolved.add(name)
        finer.update(finer_classes().get(name, ()))
    return frozenset(resolved), frozenset(finer)
