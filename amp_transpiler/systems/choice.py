"""From what a user asks for to a `Policy`: the systems by name, SambaNova's presets, Paddle's levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import LowFormat, low_format
from amp_transpiler.precision.assign import Policy
from amp_transpiler.precision.rules import Rules
from amp_transpiler.systems.mxnet.rules import MxnetRules
from amp_transpiler.systems.paddle.colours import Level, parse_level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.rules import PaddleRules
from amp_transpiler.systems.raf.rules import RafRules
from amp_transpiler.systems.sambanova.rules import PRESETS, SambanovaRules, find_preset, parse_mixed_ops
from amp_transpiler.systems.torch.rules import TorchRules

__all__ = ["DEFAULT_DTYPE", "POLICIES", "TARGETS", "Asked", "choose_policy"]

TARGETS = ("cuda", "cpu", "any", "tensorrt")


class _Default(str):
    """A default value that can be told from the same text given by the caller."""

    __slots__ = ()


DEFAULT_DTYPE: str = _Default("float16")
"""float16, but with SambaNova's presets and mixed operators, which are bfloat16 unless told otherwise."""

_OTHER_SYSTEMS: dict[str, Callable[[LowFormat, AutoMixedPrecisionLists], Rules]] = {
    "torch": TorchRules,
    "raf": RafRules,
    "mxnet": MxnetRules,
}
POLICIES = ("paddle", *_OTHER_SYSTEMS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user asks for, as `transpile` takes it.

    Attributes:
        policy: whose rules: `paddle`, `torch`, `raf`, `mxnet`.
        level: Paddle's; the other systems have one way only.
        dtype: the low format.
        target: whose kernels count.
        lists: what the user listed, or None.
        use_promote: Paddle's promotion.
        preset: one of SambaNova's presets, instead of a policy and level.
        mixed_ops: SambaNova's operators in mixed precision, with or without a preset.
    """

    policy: str = "paddle"
    level: str = "auto"
    dtype: str = DEFAULT_DTYPE
    target: str = "cuda"
    lists: AutoMixedPrecisionLists | None = None
    use_promote: bool = False
    preset: str | None = None
    mixed_ops: str | Collection[str] = ()

    @property
    def by_sambanova(self) -> bool:
        """Whether SambaNova's rules are asked for."""
        return self.preset is not None or bool(self.mixed_ops)

    @property
    def low(self) -> LowFormat:
        """The low format."""
        return low_format("bfloat16" if self.by_sambanova and isinstance(self.dtype, _Default) else self.dtype)

    @property
    def label(self) -> str:
        """What was asked for, in a few words."""
        if self.by_sambanova:
            parts = [f"preset {self.preset}"] if self.preset is not None else []
            return ", ".join(parts + [f"mixed {name}" for name in sorted(parse_mixed_ops(self.mixed_ops))])
        return f"level {parse_level(self.level)}" if self.policy == "paddle" else f"policy {self.policy}"


def choose_policy(asked: Asked) -> Policy:
    """Return the policy that was asked for. Marks of `fp16_guard`, which is Paddle's, bind Paddle's rules alone.

    Raises:
        OptionError: something has no meaning, or two things contradict each other.
    """
    if asked.target not in TARGETS:
        raise OptionError(f"unknown target {asked.target!r}: expected one of {', '.join(TARGETS)}")
    if asked.policy not in POLICIES:
        raise OptionError(f"unknown policy {asked.policy!r}: expected one of {', '.join(POLICIES)}")
    level, low = parse_level(asked.level), asked.low
    lists = asked.lists if asked.lists is not None else AutoMixedPrecisionLists(dtype=low.name)
    if asked.by_sambanova:
        return _sambanova(asked, level, low, lists)
    if asked.policy == "paddle":
        rules: Rules = PaddleRules(level, lists, use_promote=asked.use_promote)
        return Policy(level=level, low=low, target=asked.target, rules=rules)
    if asked.use_promote:
        raise OptionError(f"use_promote is Paddle's: policy {asked.policy!r} has its own rule; leave one of them out")
    if level not in ("auto", "O0", "O1"):
        raise OptionError(
            f"level {level} is Paddle's: policy {asked.policy!r} goes by its own lists alone; leave the level out, or "
            "take policy 'paddle' or preset 'mp4' for a pure mode"
        )
    rules = _OTHER_SYSTEMS[asked.policy](low, lists)
    return Policy(level="O0" if level == "O0" else "O1", low=low, target=asked.target, rules=rules, use_guard=False)


def _sambanova(asked: Asked, level: Level, low: LowFormat, lists: AutoMixedPrecisionLists) -> Policy:
    what = f"preset {asked.preset!r}" if asked.preset is not None else "mixed_ops"
    for given, default, name in (
        (asked.policy, "paddle", "policy"),
        (level, "auto", "level"),
        (asked.use_promote, False, "use_promote"),
    ):
        if given != default:
            raise OptionError(f"{what} decides by itself, so {name} {given!r} has no meaning beside it: drop one")
    mixed = parse_mixed_ops(asked.mixed_ops)
    if asked.mixed_ops and not mixed:
        raise OptionError(f"mixed_ops is {asked.mixed_ops!r}, which names nothing: expected gemm, softmax or both")
    preset = find_preset(asked.preset) if asked.preset is not None else PRESETS["mp0"]
    rules = SambanovaRules(preset, mixed, lists)
    own: Level = "O1" if preset.level == "O0" and mixed else preset.level
    return Policy(level=own, low=low, target=asked.target, rules=rules, use_guard=False)
