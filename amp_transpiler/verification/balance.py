"""Finds the conversion that pays: what `precision/balance.py` chooses among conversions that keep the limits."""

from __future__ import annotations

import dataclasses

from amp_transpiler.conversion import Trials
from amp_transpiler.precision.balance import Aim, aimed, balanced
from amp_transpiler.verification.conversions import Conversions, Found

__all__ = ["balanced_conversion"]


def balanced_conversion(
    conversions: Conversions, notes: list[str], *, frontier: bool, cache: bool, limited: bool
) -> Found:
    """Return the smallest conversion that keeps the limits and is at most a tenth slower than the fastest one.

    The predictions without a limit say which aim is looked at first. What a search finds for it takes the place of
    what was predicted, until the one that is best is one that was found: mostly one search is enough.

    Args:
        conversions: the program, the policy and the data.
        notes: what the user should know; gets more.
        frontier: whether the curve between error and cost is wanted.
        cache: whether what runs have shown may be kept, and found again.
        limited: there are limits.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    policy, prepared = conversions.policy, conversions.prepared
    with conversions.phase("predict"):
        trials = Trials(prepared, conversions.ranges, conversions.unfused)
        known = trials.candidates(policy)
    by_aim: dict[Aim, Found] = {}
    while known and (aim := balanced(known)) not in by_aim:
        of_aim = dataclasses.replace(conversions, policy=aimed(policy, aim, prepared.model), trials=trials)
        if aim == "float32":
            by_aim[aim] = Found(of_aim.measured(of_aim.policy, confirm=True))
        else:
            from amp_transpiler.verification.search import best_conversion  # float32 needs no search

            by_aim[aim] = best_conversion(of_aim, notes, frontier=frontier, cache=cache, limited=limited)
        best = by_aim[aim].best
        if best.excess > 1.0:
            del known[aim]
        elif aim != "float32":  # that of the source is known
            known[aim] = trials.candidate(best.program, best.conversion, policy)
    notes[:] = dict.fromkeys(notes)  # searches may say the same
    chosen = by_aim[balanced(known)] if known else min(by_aim.values(), key=lambda searched: searched.best.excess)
    if frontier and not chosen.curve:
        chosen = _with_curve(chosen, conversions, notes, cache=cache)
    evidence = next(
        (searched.evidence for searched in (chosen, *by_aim.values()) if searched.evidence is not None), None
    )
    return dataclasses.replace(chosen, evidence=evidence)


def _with_curve(chosen: Found, conversions: Conversions, notes: list[str], *, cache: bool) -> Found:
    """Add the curve to a choice that no search was needed for: float32 throughout."""
    from amp_transpiler.verification.search import best_conversion

    of_low = dataclasses.replace(conversions, policy=dataclasses.replace(conversions.policy, objective="low"))
    searched = best_conversion(of_low, notes, frontier=True, cache=cache, limited=True)
    if searched.curve_with is None:
        return chosen
    curve = tuple(searched.curve_with(chosen.best))
    return dataclasses.replace(chosen, curve=curve, evidence=searched.evidence)
