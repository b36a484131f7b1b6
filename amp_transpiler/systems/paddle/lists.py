"""The operator lists that levels OD, O1 and O2 go by, with Paddle's rules for changing them."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable

import onnx

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.ops.default_lists import DEFAULT_COLOURS, FINER_CLASSES, Colour
from amp_transpiler.ops.paddle_names import PADDLE_NAMES
from amp_transpiler.ops.schema import newest_opset, signature
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.targets import kernel_table

__all__ = ["AutoMixedPrecisionLists", "Colour", "known_operator", "unknown_operators"]

logger = logging.getLogger(__name__)


def _default(colour: Colour) -> frozenset[str]:
    return frozenset(key for key, (found, _) in DEFAULT_COLOURS.items() if found is colour)


_INTERNAL_DOMAINS = ("com.ms.internal.nhwc", "com.microsoft.nchwc")  # ONNX Runtime's own, not for models
DEFAULT_WHITE = _default(Colour.WHITE)
DEFAULT_BLACK = _default(Colour.BLACK)
DEFAULT_GRAY = _default(Colour.GRAY)
DEFAULT_EXTRA_BLACK = _default(Colour.UNSUPPORTED)


class AutoMixedPrecisionLists(UserLists):
    """Which operators are always low, always float32, or follow their producers.

    Names are ONNX's (`Conv`, `com.microsoft::BiasGelu`); Paddle's (`conv2d`, `pool2d`) stand for one or more of them.
    A few operators have finer classes (`Conv[depthwise]`, `Conv[3d]`, `Gather[embedding]`, `MaxPool[indices]`,
    `Pow[scalar]`): a plain ONNX name covers them too, unless one is named itself; `conv2d` is `Conv` alone. A name that
    is not known is taken as it is, with a warning: it may be an operator of a custom domain.

    The same lists serve both formats: Paddle's static bfloat16 uses the float16 lists as well.

    Attributes:
        white_list: operators that are low at every level.
        black_list: operators that are float32 for numerical reasons, the extra list and the user's included.
        gray_list: operators that follow their producers at O1.
        unsupported_list: what O2 does not lift with the black list: the extra list, and the user's black ones.
        extra_black_list: interpolation, embeddings, scatters: float32 at O2 too, embeddings aside; their parameters,
            unlike those of what the user lists as black, may be low.
        black_varnames: an operator that reads or writes one of these values is float32.
        dtype: `float16` or `bfloat16`.

    Args:
        custom_white_list: operators to move to the white list.
        custom_black_list: operators to move to the black list; they stay float32 at every level.
        custom_black_varnames: names of values.
        dtype: the low format.

    Raises:
        OptionError: (a ValueError) `dtype` is no low format, or an operator is in both custom lists.
    """

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
        dtype: str = "float16",
    ) -> None:
        self.dtype = low_format(dtype).name
        self.white_list = set(DEFAULT_WHITE)
        self.black_list = set(DEFAULT_BLACK | DEFAULT_EXTRA_BLACK)
        self.gray_list = set(DEFAULT_GRAY)
        self.extra_black_list = set(DEFAULT_EXTRA_BLACK)
        self.unsupported_list = set(DEFAULT_EXTRA_BLACK)
        white, wide_white = _resolve(_names(custom_white_list, "custom_white_list"))
        black, wide_black = _resolve(_names(custom_black_list, "custom_black_list"))
        if both := sorted(white & black):
            raise OptionError(
                f"custom white list overlaps custom black list: {', '.join(both)} in both; leave it in one of them"
            )
        super().__init__(
            custom_white_list=white | (wide_white - black),
            custom_black_list=black | (wide_black - white),
            black_varnames=set(_names(custom_black_varnames, "custom_black_varnames")),
        )
        self._move()
        self._warn_of_missing_kernels(white)

    def __repr__(self) -> str:
        white, black = sorted(self.custom_white_list), sorted(self.custom_black_list)
        return f"AutoMixedPrecisionLists({white}, {black}, {sorted(self.black_varnames)}, {self.dtype!r})"

    def _move(self) -> None:
        for key in self.custom_white_list:
            if key in self.black_list:
                self.black_list.discard(key)
                self.extra_black_list.discard(key)
                self.unsupported_list.discard(key)
            else:
                self.gray_list.discard(key)
            self.white_list.add(key)
        for key in self.custom_black_list:
            if key in self.white_list:
                self.white_list.discard(key)
            else:
                self.gray_list.discard(key)
            self.extra_black_list.discard(key)  # now it is the user's wish, which holds parameters high too
            self.black_list.add(key)
            self.unsupported_list.add(key)

    def _warn_of_missing_kernels(self, white: Iterable[str]) -> None:
        table = kernel_table("cuda")
        for key in sorted(white):
            domain, _, op_type = key.partition("[")[0].rpartition("::")
            formal = signature(domain, op_type, newest_opset())
            if formal is None or formal.has_function or table.mentions(domain, op_type, self.dtype):
                continue  # a custom operator, one that is judged by its body, or one with a kernel
            logger.warning("custom white list: %s has no %s kernel on CUDA and stays float32 there", key, self.dtype)


def _names(names: Iterable[str] | None, argument: str) -> Iterable[str]:
    if isinstance(names, str):
        raise OptionError(f"{argument}: expected a set or list of names, got the string {names!r}; write [{names!r}]")
    return names or ()


def _resolve(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys that the given names stand for, and the finer classes that plain ONNX names cover besides."""
    found: set[str] = set()
    finer: set[str] = set()
    for given in names:
        name = given.removeprefix("ai.onnx::")
        if name in PADDLE_NAMES:
            if not PADDLE_NAMES[name]:
                logger.warning("%s has no counterpart in ONNX; listing it has no effect", name)
            found.update(PADDLE_NAMES[name] or (name,))
            continue
        if not known_operator(name):
            near = _near(name, _vocabulary())
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            logger.warning("%s is neither an operator of ONNX or ONNX Runtime nor a known alias%s", name, hint)
        found.add(name)
        finer.update(FINER_CLASSES.get(name, ()))
    return frozenset(found), frozenset(finer)


def unknown_operators(names: Iterable[str], model_ops: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the names that mean nothing, each with a few similar ones that do.

    Args:
        names: operators as a user wrote them.
        model_ops: the operators of the model at hand (`Conv`, `my.domain::Foo`), all of them acceptable.
    """
    present = {name.removeprefix("ai.onnx::") for name in model_ops}
    vocabulary = _vocabulary() | present
    unknown = [n for n in names if not known_operator(n) and n.removeprefix("ai.onnx::") not in present]
    return [(name, _near(name, vocabulary)) for name in unknown]


def known_operator(name: str) -> bool:
    """Whether `name` is an operator of any version, a finer class of one, or one of Paddle's names."""
    return name.removeprefix("ai.onnx::") in _vocabulary()


@functools.cache
def _vocabulary() -> frozenset[str]:
    """Every name with a meaning."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    schemas = (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema())
    named = ((schema.domain, schema.name) for schema in schemas if schema.domain not in _INTERNAL_DOMAINS)
    operators = {f"{domain}::{name}" if domain else name for domain, name in named}
    return frozenset(operators | {key for keys in FINER_CLASSES.values() for key in keys} | PADDLE_NAMES.keys())


def _near(name: str, vocabulary: Iterable[str]) -> list[str]:
    """Up to three names like `name`, with and without its domain, whatever the case."""
    by_folded: dict[str, list[str]] = {}
    for known in sorted(vocabulary):
        by_folded.setdefault(known.lower(), []).append(known)
        by_folded.setdefault(known.rpartition("::")[2].lower(), []).append(known)
    forms = dict.fromkeys((name.lower(), name.rpartition("::")[2].lower()))
    matches = [match for form in forms for match in difflib.get_close_matches(form, by_folded, n=3, cutoff=0.7)]
    return list(dict.fromkeys(known for match in matches for known in by_folded[match]))[:3]
