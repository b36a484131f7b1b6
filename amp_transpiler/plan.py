"""Turns the options of a call into its plan: by which policy is decided, and what is asked of the result.

A wrong option is reported here, before the model is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias, get_args

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT16, FLOAT32
from amp_transpiler.ops.fusions import NO_FUSION, STANDARD_FUSIONS, default_fusions
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import declarations
from amp_transpiler.precision.limits import with_limits
from amp_transpiler.precision.policy import Float64Choice, InParts, Policy
from amp_transpiler.precision.preference import objective_of
from amp_transpiler.precision.thresholds import checked_thresholds
from amp_transpiler.precision.training import TrainingWishes
from amp_transpiler.report.recipe import Recipe
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.devices import device_for
from amp_transpiler.targets.tensorrt import TENSORRT, TENSORRT_RTX
from amp_transpiler.targets.webgpu import WEBGPU
from amp_transpiler.verification.default_device import checked_wish
from amp_transpiler.verification.transformers import check_optimizable
from amp_transpiler.verification.user_metric import load_metric
from amp_transpiler.verification.verify import Questions

__all__ = ["Plan", "plan", "policy_for"]

Step: TypeAlias = Callable[[Policy, ConversionOptions], Policy]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Says what a call asks for, before anything is known of its model.

    Attributes:
        options: the options, with the values that count.
        request: which system decides, with which of its settings.
        policy: how it decides.
        questions: what is asked of the result.
        fusions: what is fused first, as in `ops.fusions.fusions_of`.
        fuses_by_default: nobody asked for that, so the result has it only where it is the better for it.
    """

    options: ConversionOptions
    request: Request
    policy: Policy
    questions: Questions
    fusions: str = NO_FUSION
    fuses_by_default: bool = False


def plan(options: ConversionOptions) -> Plan:
    """Return the plan of a call.

    Args:
        options: as the caller has them; a recipe is read.

    Raises:
        OptionError: a value is none of its kind, an option has no meaning, or two contradict each other.
        EnvironmentProblem: a device has to check the result, and none answers.
    """
    request = _request(options)
    policy = _after(_LIMITS, choose_policy(request), options)
    questions = _questions(options, policy)
    options = options.checked()
    policy = _after(_AIMS, policy, options)
    if options.build != "auto":
        from amp_transpiler.verification.engine_check import check_build_wish  # few calls have a wish

        check_build_wish(options.build, policy.target)
    if options.optimize:
        check_optimizable(policy)
    if options.pad_weights and policy.target.name != CUDA.name:
        raise OptionError(
            f"pad_weights has no meaning for target {policy.target.name}: only kernels of target cuda have prices"
        )
    fusions = _fusions(options)
    if fusions is None:
        chosen = _default_fusions(options, request, policy)
        return Plan(options, request, policy, questions, chosen, chosen != NO_FUSION)
    if fusions != NO_FUSION:
        _check_fusions(fusions, options, policy)
    return Plan(options, request, policy, questions, fusions)


def _fusions(options: ConversionOptions) -> str | None:
    """Return the fusions that were asked for: a recipe without them is of a conversion that fused nothing."""
    if options.fuse is None and isinstance(options.recipe, Recipe):
        return str(options.recipe.options.get("fuse", NO_FUSION))
    return options.fuse


def _default_fusions(options: ConversionOptions, request: Request, policy: Policy) -> str:
    """Return what is fused unasked: something at the levels that lower all that the target can run."""
    lowers_most = request.level_name in _FUSED_LEVELS and policy.low is not FLOAT32
    if not lowers_most or options.optimize:
        return NO_FUSION
    if policy.target.name in _FUSED_AS_STANDARD:
        return STANDARD_FUSIONS
    return default_fusions(policy.low.name) if policy.target.name == CUDA.name else NO_FUSION


def _check_fusions(fusions: str, options: ConversionOptions, policy: Policy) -> None:
    from amp_transpiler.fusion.fuse import check_fusions

    check_fusions(fusions, policy)
    if options.optimize:
        raise OptionError("optimize and fuse exclude each other: both fuse the model first")


def policy_for(request: Request, options: ConversionOptions) -> Policy:
    """Return the policy of a request, with everything that the options say about it.

    Args:
        request: which system decides.
        options: those of a plan.
    """
    return _after((*_LIMITS, *_AIMS), choose_policy(request), options)


def _after(steps: tuple[Step, ...], policy: Policy, options: ConversionOptions) -> Policy:
    return functools.reduce(lambda refined, step: step(refined, options), steps, policy)


def _request(options: ConversionOptions) -> Request:
    return Request(
        policy=options.policy,
        level=options.level,
        dtype=options.dtype,
        target=options.target,
        use_promote=options.use_promote,
        preset=options.preset,
        mixed_ops=options.mixed_ops,
        opset=options.opset,
        ort=options.ort,
    )


def _questions(options: ConversionOptions, policy: Policy) -> Questions:
    metric, limits = options.metric, policy.limits
    return Questions(
        options.inputs,
        load_metric(metric, options.metric_bound),
        frontier=options.frontier,
        cache=options.cache,
        limited=metric is not None or not limits.are_none,  # a default limit is one like any other
        required=options.tolerance is not None or metric is not None or options.mismatch is not None,
        device_check=checked_wish(options.device_check, verify=options.verify),
    )


# ---- what the options say about the policy, a step each ----


def _with_wishes(policy: Policy, options: ConversionOptions) -> Policy:
    """Add the wishes about a training step."""
    wishes = TrainingWishes(
        state=options.state or {}, master_weights=options.master_weights, loss_scaling=options.loss_scaling
    )
    wishes.check(policy.low.name, copies=policy.copies)
    return dataclasses.replace(policy, wishes=wishes)


def _with_limits(policy: Policy, options: ConversionOptions) -> Policy:
    """Put the limits of the outputs in place of the defaults."""
    return dataclasses.replace(policy, limits=with_limits(policy.limits, options.tolerance, options.mismatch))


def _with_recipe(policy: Policy, options: ConversionOptions) -> Policy:
    """Settle the decisions of a recipe, which is the outcome of a search, if one was needed."""
    if not isinstance(options.recipe, Recipe):
        return policy
    return dataclasses.replace(policy, settled=options.recipe.settled(), search_runs=0)


def _with_device(policy: Policy, options: ConversionOptions) -> Policy:
    """Say for which device, and for which sizes, times are predicted."""
    formats = "" if policy.copies else policy.low.name
    target = policy.target
    if formats in target.lacks:
        raise OptionError(f"target {target.name} has no {formats}: take float16, or another target")
    device = device_for(options.device, target.name, formats, runs_on_gpu=target.runs_on_gpu)
    return dataclasses.replace(policy, device=device.name, dims=options.dims or {})


def _with_aim(policy: Policy, options: ConversionOptions) -> Policy:
    """Say what level auto aims at.

    Raises:
        OptionError: an option has no meaning at another level or for the target.
    """
    decides = policy.objective != "rules"
    objective = objective_of(options.prefer, policy, replays=options.recipe is not None)
    for name, declared in declarations(ConversionOptions).items():
        value = getattr(options, name)
        if isinstance(value, Mapping):  # scalings that a report has: nothing is left to decide
            continue
        if declared.auto_only and not decides and value != declared.default:
            raise OptionError(f"{name} has a meaning at level auto only, which decides by cost: drop one of the two")
    if options.metric is not None and options.tolerance is None:
        policy = dataclasses.replace(policy, limits=dataclasses.replace(policy.limits, tolerance=math.inf))
    return dataclasses.replace(policy, objective=objective, headroom=options.headroom) if decides else policy


def _with_parts(policy: Policy, options: ConversionOptions) -> Policy:
    """Name the products that are computed in parts where they are low: those of a recipe, or the caller's own."""
    if not isinstance(options.split_sums, Mapping) or not options.split_sums:
        return policy
    parts = {name: InParts(count, "as asked for") for name, count in options.split_sums.items()}
    return dataclasses.replace(policy, parts=parts)


def _with_thresholds(policy: Policy, options: ConversionOptions) -> Policy:
    """Add the thresholds beyond which nodes stay float32."""
    thresholds = checked_thresholds(
        _most_in_engines(policy, options) if options.data_max is None else options.data_max,
        options.init_max,
        options.max_depth_of_reduction,
        decides=not policy.copies and policy.low is not FLOAT32,
        runs=options.verify,
    )
    return dataclasses.replace(policy, thresholds=thresholds)


def _most_in_engines(policy: Policy, options: ConversionOptions) -> float | None:
    """Return the default of `data_max`: what float16 holds, where rules decide about an engine; None elsewhere.

    No limit on the error turns nodes back to float32 there, as at level auto, and casts around a few cost next to
    nothing, since an engine's builder fuses them.
    """
    asks = policy.target.builds_engines and policy.objective == "rules" and policy.low is FLOAT16
    return FLOAT16.max if asks and options.verify and not policy.copies and options.recipe is None else None


def _with_float64(policy: Policy, options: ConversionOptions) -> Policy:
    """Say what becomes of float64."""
    if options.float64 not in get_args(Float64Choice):
        raise OptionError(f"float64 is {options.float64!r}: expected 'keep', 'float32' or 'float32-io'")
    return dataclasses.replace(policy, float64=options.float64)


_FUSED_LEVELS = ("auto", "O2")
_FUSED_AS_STANDARD = frozenset({TENSORRT.name, TENSORRT_RTX.name, WEBGPU.name})
"""Targets that get ONNX's own fused operators unasked: those compute in float32 inside, and need no ONNX Runtime."""
_LIMITS: tuple[Step, ...] = (_with_wishes, _with_limits, _with_recipe)
_AIMS: tuple[Step, ...] = (_with_device, _with_aim, _with_parts, _with_thresholds, _with_float64)
