"""`paddle.static.amp.bf16.amp_lists`: holds the lists for bfloat16 under the names of Paddle's older module."""

from __future__ import annotations

from collections.abc import Iterable

from amp_transpiler.paddle.static.amp import fp16_lists
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.operator_set import OperatorSet

__all__ = ["AutoMixedPrecisionListsBF16", "bf16_list", "fp32_list", "gray_list"]

bf16_list = fp16_lists.white_list
fp32_list = fp16_lists.black_list | fp16_lists._extra_black_list  # noqa: SLF001  # Paddle's name
gray_list = fp16_lists.gray_list


class AutoMixedPrecisionListsBF16(AutoMixedPrecisionLists):
    """Lists for bfloat16: operators on the first are low, those on the second stay float32.

    Args:
        custom_bf16_list: operators, by Paddle's names or ONNX's.
        custom_fp32_list: likewise.
        custom_fp32_varnames: names of values; nodes that read or write one of them stay float32.

    Raises:
        OptionError: (a ValueError) an operator is on both lists.
    """

    def __init__(
        self,
        custom_bf16_list: Iterable[str] | None = None,
        custom_fp32_list: Iterable[str] | None = None,
        custom_fp32_varnames: Iterable[str] | None = None,
    ) -> None:
        super().__init__(custom_bf16_list, custom_fp32_list, custom_fp32_varnames, dtype="bfloat16")

    @property
    def bf16_list(self) -> OperatorSet:
        """Return the white list."""
        return self.white_list

    @property
    def fp32_list(self) -> OperatorSet:
        """Return the black list."""
        return self.black_list

    @property
    def fp32_varnames(self) -> set[str]:
        """Return the names of values whose nodes stay float32."""
        return set(self.black_varnames)
