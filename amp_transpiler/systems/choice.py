"""From a request to a policy: which system decides, with which of its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT16, FLOAT32, LOW_DTYPES, LowFormat, float_format
from amp_transpiler.ops.limits import OLDEST_OPSET
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.option_names import DEFAULT_DTYPE
from amp_transpiler.systems.paddle.levels import find_level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.policy import paddle_policy
from amp_transpiler.systems.registry import SYSTEMS, rules_class
from amp_transpiler.systems.sambanova.rules import PRESETS, SambanovaRules, find_preset, parse_mixed_ops
from amp_transpiler.targets import Target, find_target

__all__ = ["Request", "choose_policy"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A user's request, with the options that `transpile` takes.

    Attributes:
        policy: the system that decides: a key of `SYSTEMS`.
        level: Paddle's level, or auto; the other systems have no levels.
        dtype: the low format.
        target: whose kernels count.
        lists: the user's operator lists, or None for the defaults.
        use_promote: Paddle's promotion.
        preset: one of SambaNova's presets, instead of a policy and level.
        mixed_ops: SambaNova's operators in mixed precision, with or without a preset.
        opset: the version of ONNX's own domain to convert to, or None.
        ort: the version of ONNX Runtime whose kernels count; None for the installed one.
    """

    policy: str = "paddle"
    level: str = "auto"
    dtype: str = DEFAULT_DTYPE
    target: str = "cuda"
    lists: AutoMixedPrecisionLists | None = None
    use_promote: bool = False
    preset: str | None = None
    mixed_ops: str | Collection[str] = ()
    opset: int | None = None
    ort: str | None = None

    @property
    def by_sambanova(self) -> bool:
        """Whether SambaNova's rules decide."""
        return self.preset is not None or bool(self.mixed_ops)

    @property
    def system(self) -> str:
        """The system whose rules decide."""
        return "sambanova" if self.by_sambanova else self.policy

    @property
    def low(self) -> LowFormat:
        """The low format; float32 for a conversion that only widens."""
        return float_format("bfloat16" if self.by_sambanova and self.dtype is DEFAULT_DTYPE else self.dtype)

    @property
    def level_name(self) -> str | None:
        """The level's name as the table spells it; None where the system that decides has no levels."""
        return find_level(self.level).name if self.policy == "paddle" and not self.by_sambanova else None

    @property
    def label(self) -> str:
        """The request in a few words: `level O2`, `policy torch`, `preset mp1, mixed gemm`."""
        if self.by_sambanova:
            parts = [f"preset {self.preset}"] if self.preset is not None else []
            return ", ".join(parts + [f"mixed {name}" for name in sorted(parse_mixed_ops(self.mixed_ops))])
        return f"policy {self.policy}" if self.level_name is None else f"level {self.level_name}"

    @property
    def note(self) -> str:
        """A remark on a default that differs from the system's own; empty if there is none."""
        if self.system == "torch" and self.target == "cpu" and self.dtype is DEFAULT_DTYPE:
            return (
                "torch's autocast on a CPU has bfloat16 as its default, and this result is float16: dtype bfloat16 is "
                "torch's"
            )
        return ""


def choose_policy(request: Request) -> Policy:
    """Return the policy that a request asks for.

    Raises:
        OptionError: an option has no such value, or two options contradict each other.
    """
    policy = _widening(request) if request.low is FLOAT32 else _policy_of_system(request)
    if not policy.copies:
        policy = dataclasses.replace(policy, widens=LOW_DTYPES - {policy.low.dtype})
    if request.opset is None:
        return policy
    _check_opset(request.opset, policy.target.newest_opset)
    if policy.copies:
        raise OptionError(f"{request.label} changes nothing, so opset {request.opset} has no meaning: drop one")
    return dataclasses.replace(policy, opset=request.opset)


def _check_opset(opset: object, newest: int) -> None:
    if not isinstance(opset, int) or not OLDEST_OPSET <= opset <= newest:
        raise OptionError(f"opset is {opset!r}: expected a number from {OLDEST_OPSET} to {newest}")


def _widening(request: Request) -> Policy:
    """Return the policy that makes 16-bit floats float32 and nothing low: no system has a say."""
    plain = Request()
    for asked, default, name in (
        (request.policy, plain.policy, "policy"),
        (find_level(request.level).name, plain.level, "level"),
        (request.use_promote, plain.use_promote, "use_promote"),
        (request.preset, plain.preset, "preset"),
        (tuple(request.mixed_ops), (), "mixed_ops"),
        (request.lists, None, "a list of operators or values"),
    ):
        if asked != default:
            shown = f" {asked!r}" if isinstance(asked, str) else ""
            raise OptionError(f"dtype float32 makes everything float32, so {name}{shown} has no meaning: drop one")
    target = find_target(request.target)
    decides = paddle_policy(find_level("O0"), FLOAT16, target)
    return dataclasses.replace(decides, low=FLOAT32, copies=False, use_guard=False)


def _policy_of_system(request: Request) -> Policy:
    target = find_target(request.target, request.ort)
    if request.policy not in SYSTEMS:
        raise OptionError(f"unknown policy {request.policy!r}: expected one of {', '.join(SYSTEMS)}")
    level, low = find_level(request.level), request.low
    lists = request.lists if request.lists is not None else AutoMixedPrecisionLists(dtype=low.name)
    if request.by_sambanova:
        return _sambanova(request, target, lists)
    if request.policy == "paddle":
        return paddle_policy(level, low, target, lists, use_promote=request.use_promote)
    if request.use_promote:
        raise OptionError(f"use_promote is Paddle's: policy {request.policy!r} has its own rule; leave one of them out")
    if not level.without_levels:
        raise OptionError(
            f"level {level.name} is Paddle's: policy {request.policy!r} goes only by its own lists; leave the level "
            "out, or take policy 'paddle' or preset 'mp4' for a pure mode"
        )
    rules = rules_class(request.policy)(low, lists)
    return Policy(rules=rules, low=low, target=target, copies=level.changes_nothing)


def _sambanova(request: Request, target: Target, lists: AutoMixedPrecisionLists) -> Policy:
    what = f"preset {request.preset!r}" if request.preset is not None else "mixed_ops"
    plain = Request()
    for asked, default, name in (
        (request.policy, plain.policy, "policy"),
        (find_level(request.level).name, plain.level, "level"),
        (request.use_promote, plain.use_promote, "use_promote"),
    ):
        if asked != default:
            raise OptionError(f"{what} decides by itself, so {name} {asked!r} has no meaning beside it: drop one")
    mixed = parse_mixed_ops(request.mixed_ops)
    if request.mixed_ops and not mixed:
        raise OptionError(f"mixed_ops is {request.mixed_ops!r}, which names nothing: expected gemm, softmax or both")
    preset = find_preset(request.preset) if request.preset is not None else PRESETS["mp0"]
    return Policy(
        rules=SambanovaRules(preset, mixed, lists),
        low=request.low,
        target=target,
        copies=preset.changes_nothing and not mixed,
        low_parameters=preset.others,
    )
