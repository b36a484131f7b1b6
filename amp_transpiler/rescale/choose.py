"""Chooses the powers of two: as much computation as can be in the low format, by the fewest constants that change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import constant_range
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.cut_weights import LowWeights
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.rescale.fit import Fit, fit_of_numbers, fit_of_range
from amp_transpiler.rescale.places import Place, key_of_product, numbers_in
from amp_transpiler.rescale.solve import Table, least
from amp_transpiler.rescale.system import AtBorder, Exponent, System, Unknown, system_of

__all__ = ["NOTHING", "Scaling", "Scalings", "choose_scalings"]

_FARTHEST = 24  # a power of two beyond it is of no use: the format's own range is not wider
_SPARE = 2  # exponents beyond those that are needed
_MOST_AXES = 3  # unknowns of one table; what depends on more counts each of its values by itself
_ADDED = 2.0  # the weight of a node that is added, with the casts around it
_LEAST_WEIGHT = 0.25  # of a node, in `LowWeights`: all other costs together are less
_FEWNESS, _QUIETNESS, _NEARNESS = 0.5, 0.25, 0.125  # of that: changed constants; quiet numbers; large exponents


@dataclasses.dataclass(frozen=True, slots=True)
class Scaling:
    """A constant, or an epsilon, that is multiplied by a power of two.

    Attributes:
        place: where it is.
        exponent: of the power; not 0.
    """

    place: Place
    exponent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scalings:
    """What is multiplied by which power of two, and what that is for.

    Attributes:
        scalings: the constants, in the order of the program.
        freed: nodes that fit the low format with them, and did not before.
        inserted: values at a border -> the exponent on the other side, for which a product is added.
        unfit: how many nodes still do not fit.
    """

    scalings: tuple[Scaling, ...]
    freed: tuple[ir.Node, ...]
    inserted: Mapping[ir.Value, int] = dataclasses.field(default_factory=dict)
    unfit: int = 0

    @property
    def exponents(self) -> dict[str, int]:
        """Key of a place, or of a product that is added -> the exponent."""
        added = {key_of_product(value): exponent for value, exponent in self.inserted.items()}
        return {**{scaling.place.key: scaling.exponent for scaling in self.scalings}, **added}


NOTHING = Scalings((), ())
"""Those of a program that stays as it is."""


def choose_scalings(
    model: ir.Model,
    forms: Mapping[ir.Node, LowForm],
    ranges: Mapping[str, TensorRange],
    low: LowFormat,
    headroom: float,
) -> Scalings:
    """Return the scalings of a program that let most of some nodes be low; none where that gains nothing.

    Args:
        model: a typed program without functions.
        forms: nodes that may be low where their values fit -> their low forms.
        ranges: value -> its range on data.
        low: the low format.
        headroom: how many times a range must fit.
    """
    fits = _Fits(ranges, low, headroom)
    plain = _chosen(system_of(model), forms, fits)
    if plain.unfit == 0:
        return plain
    cut = _chosen(system_of(model, may_cut=True), forms, fits)
    return cut if len(cut.freed) > len(plain.freed) else plain


def _chosen(system: System, forms: Mapping[ir.Node, LowForm], fits: _Fits) -> Scalings:
    costs = _Costs(system, forms, fits)
    unfit = sum(not costs.fits(node, {}) for node in forms)
    if not costs.needed or not system.free:
        return dataclasses.replace(NOTHING, unfit=unfit)
    chosen = least(system.free, costs.numbers, list(costs.tables()))
    exponents = {unknown: _value(exponent, chosen) for unknown, exponent in system.exponents.items()}
    freed = tuple(node for node in forms if not costs.fits(node, {}) and costs.fits(node, exponents))
    scalings = tuple(
        Scaling(unknown, exponent)
        for unknown, exponent in exponents.items()
        if isinstance(unknown, Place) and exponent and not costs.is_free(unknown)
    )
    if not all(costs.is_exact(scaling) for scaling in scalings):  # it depends on more unknowns than a table has
        return dataclasses.replace(NOTHING, unfit=unfit)
    inserted = {value: exponent for value in system.cuts if (exponent := exponents.get(value, 0))}
    if not freed or not (scalings or inserted):
        return dataclasses.replace(NOTHING, unfit=unfit)
    return Scalings(scalings, freed, inserted, sum(not costs.fits(node, exponents) for node in forms))


def _value(exponent: Exponent, chosen: Mapping[int, int]) -> int:
    total = sum(factor * chosen[number] for number, factor in exponent.items())
    assert total == int(total), "fractions of a power of two are impossible"
    return int(total)


class _Fits:
    """The fits of values and places, each computed once.

    Args:
        ranges: value -> its range.
        low: the low format.
        headroom: how many times a range must fit.
    """

    def __init__(self, ranges: Mapping[str, TensorRange], low: LowFormat, headroom: float) -> None:
        self._ranges, self._low, self._headroom = ranges, low, headroom
        self._values: dict[ir.Value, Fit | None] = {}
        self._places: dict[str, tuple[Fit, bool]] = {}
        self._exponents = range(-2 * _FARTHEST - 2, 2 * _FARTHEST + 3)

    def of(self, unknown: Unknown) -> Fit | None:
        """Return the fit of a value or place; None where nothing is known of it."""
        if isinstance(unknown, Place):
            return self._of_place(unknown)[0]
        value = unknown.value if isinstance(unknown, AtBorder) else unknown
        if value not in self._values:
            seen = self._ranges.get(str(value.name))
            fit = None if seen is None else fit_of_range(seen, self._low, self._headroom, self._exponents)
            self._values[value] = fit
        return self._values[value]

    def is_free(self, place: Place) -> bool:
        """Whether a power of two changes nothing of the numbers of a place."""
        return self._of_place(place)[1]

    def _of_place(self, place: Place) -> tuple[Fit, bool]:
        if place.key not in self._places:
            numbers = numbers_in(place)
            fit = fit_of_numbers(numbers, self._low, self._exponents)
            if _hides(place, self._low):  # it becomes the largest number, whatever it is
                fit = dataclasses.replace(fit, fits=np.ones_like(fit.fits), quiet=np.zeros_like(fit.quiet))
            self._places[place.key] = (fit, numbers.are_scaled_freely)
        return self._places[place.key]


class _Costs:
    """The tables of one program.

    Args:
        system: its exponents.
        forms: nodes -> their low forms.
        fits: what fits.
    """

    def __init__(self, system: System, forms: Mapping[ir.Node, LowForm], fits: _Fits) -> None:
        self._system, self._forms = system, forms
        self._fit, self.is_free = fits.of, fits.is_free
        self._grids: dict[tuple[tuple[tuple[int, Fraction], ...], tuple[int, ...]], np.ndarray] = {}
        self._touched = {node: tuple(self._unknowns_of(node, form)) for node, form in forms.items()}
        self._quiet_share = _QUIETNESS * _LEAST_WEIGHT / max(1, sum(map(len, self._touched.values())))
        unfit = [unknown for touched in self._touched.values() for unknown in touched if not self._is_held(unknown, 0)]
        self.needed = sorted({need for unknown in unfit if (need := self._need(unknown)) is not None})
        farthest = min(_FARTHEST, max(map(abs, self.needed), default=0) + _SPARE)
        self.numbers = range(-farthest, farthest + 1)
        """The exponents that a free one may have."""

    def _unknowns_of(self, node: ir.Node, form: LowForm) -> Iterator[Unknown]:
        reads, results = self._system.reads.get(node, ()), self._system.results.get(node, ())
        touched = [reads[index] for index in sorted(form.inputs) if index < len(reads)]
        touched += [results[index] for index in sorted(form.outputs) if index < len(results)]
        yield from (unknown for unknown in touched if unknown is not None)

    def _is_held(self, unknown: Unknown, exponent: int) -> bool:
        fit = self._fit(unknown)
        return fit is None or bool(fit.fits[exponent - fit.lowest])

    def _need(self, unknown: Unknown) -> int | None:
        """Return the nearest number of a free exponent at which a value or place fits; None if there is none."""
        fit, exponent = self._fit(unknown), self._system.exponents.get(unknown)
        if fit is None or exponent is None:
            return None
        suitable = np.flatnonzero(fit.fits) + fit.lowest
        if not suitable.size:
            return None
        nearest = int(suitable[np.abs(suitable).argmin()])
        most = max(abs(factor) for factor in exponent.values())
        need = math.ceil(abs(nearest) / most)
        return None if need > _FARTHEST else int(math.copysign(need, nearest))

    def fits(self, node: ir.Node, exponents: Mapping[Unknown, int]) -> bool:
        """Whether all that a node reads and computes fits at some exponents; what has none has 0."""
        return all(self._is_held(unknown, exponents.get(unknown, 0)) for unknown in self._touched[node])

    def tables(self) -> Iterator[Table]:
        """Yield all costs."""
        yield from _joined(
            [
                *self._node_tables(),
                *self._place_tables(),
                *self._cut_tables(),
                *self._fractions(),
                *self._near(),
            ],
            len(self.numbers),
        )

    def is_exact(self, scaling: Scaling) -> bool:
        """Whether float32 holds the products of a constant without a loss."""
        fit = self._fit(scaling.place)
        at = -1 if fit is None else scaling.exponent - fit.lowest
        return fit is not None and 0 <= at < len(fit.is_exact) and bool(fit.is_exact[at])

    def _node_tables(self) -> Iterator[Table]:
        weights = LowWeights()
        for node, touched in self._touched.items():
            weight = weights.high(node)
            free = {number for unknown in touched for number in self._system.exponents.get(unknown, {})}
            if not free or not weight:
                continue
            groups = [touched] if len(free) <= _MOST_AXES else [(unknown,) for unknown in touched]
            for group in groups:
                yield from self._unfit_table(group, weight / len(groups))

    def _unfit_table(self, group: Iterable[Unknown], weight: float) -> Iterator[Table]:
        described = [(unknown, fit) for unknown in group if (fit := self._fit(unknown)) is not None]
        scope = tuple(sorted({number for unknown, _ in described for number in self._exponent(unknown)}))
        if not scope or len(scope) > _MOST_AXES:
            return
        unfit = np.zeros((len(self.numbers),) * len(scope), bool)
        quiet = np.zeros(unfit.shape)
        for unknown, fit in described:
            at = self._index(self._exponent(unknown), scope, fit)
            unfit = unfit | ~fit.fits[at]
            quiet = quiet + fit.quiet[at]
        yield Table(scope, weight * unfit + self._quiet_share * quiet)

    def _exponent(self, unknown: Unknown) -> Exponent:
        return self._system.exponents.get(unknown, {})

    def _index(self, exponent: Exponent, scope: tuple[int, ...], fit: Fit) -> np.ndarray:
        """Return where in a fit the exponents of every combination of the unknowns are, its ends for those beyond."""
        whole = np.floor(self._grid(exponent, scope)).astype(np.int64) - fit.lowest
        at: np.ndarray = np.minimum(np.maximum(whole, 0), len(fit.fits) - 1)
        return at

    def _grid(self, exponent: Exponent, scope: tuple[int, ...]) -> np.ndarray:
        """Return the exponents of every combination of the unknowns, computed once a form."""
        key = (tuple(exponent.items()), scope)
        if key not in self._grids:
            total = np.zeros((1,) * len(scope))
            numbers = np.array(self.numbers, np.float64)
            for number, factor in exponent.items():
                shape = [len(self.numbers) if other == number else 1 for other in scope]
                total = total + float(factor) * numbers.reshape(shape)
            self._grids[key] = total
        return self._grids[key]

    def _place_tables(self) -> Iterator[Table]:
        """Yield what it costs to change constants, and forbid what would change their numbers otherwise."""
        places = [
            (unknown, exponent) for unknown, exponent in self._system.exponents.items() if isinstance(unknown, Place)
        ]
        price = _FEWNESS * _LEAST_WEIGHT / max(1, len(places))
        for place, exponent in places:
            scope = tuple(sorted(exponent))
            if len(scope) > _MOST_AXES or self.is_free(place):
                continue
            fit = self._fit(place)
            assert fit is not None
            grid = self._grid(exponent, scope)
            inside = (grid >= fit.lowest) & (grid < fit.lowest + len(fit.fits))
            exact = fit.is_exact[self._index(exponent, scope, fit)] & inside
            costs = np.where(exact, price * (grid != 0), np.inf)
            yield Table(scope, np.broadcast_to(costs, (len(self.numbers),) * len(scope)))

    def _cut_tables(self) -> Iterator[Table]:
        """Yield what it costs to add products."""
        for value in self._system.cuts:
            exponent = self._exponent(value)
            scope = tuple(sorted(exponent))
            if scope and len(scope) <= _MOST_AXES:
                costs = _ADDED * (self._grid(exponent, scope) != 0)
                yield Table(scope, np.broadcast_to(costs, (len(self.numbers),) * len(scope)))

    def _fractions(self) -> Iterator[Table]:
        """Forbid exponents that are no whole numbers."""
        known: set[tuple[tuple[int, object], ...]] = set()
        for exponent in self._system.exponents.values():
            key = tuple(sorted(exponent.items()))
            if key in known or all(factor.denominator == 1 for factor in exponent.values()):
                continue
            known.add(key)
            scope = tuple(sorted(exponent))
            grid = self._grid(exponent, scope)
            yield Table(scope, np.where(grid == np.floor(grid), 0.0, np.inf))

    def _near(self) -> Iterator[Table]:
        """Prefer small exponents among those that do as well."""
        share = _NEARNESS * _LEAST_WEIGHT / (len(self._system.free) * len(self.numbers))
        for number in self._system.free:
            yield Table((number,), share * np.abs(np.array(self.numbers, np.float64)))


def _hides(place: Place, low: LowFormat) -> bool:
    """Whether the numbers of a place are the "minus infinity" of masks."""
    tensor = constant_of(place.value)
    return tensor is not None and constant_range(tensor, low).stands_for_infinity


def _joined(tables: Iterable[Table], size: int) -> Iterator[Table]:
    """Yield tables with all costs of the same unknowns in one."""
    totals: dict[tuple[int, ...], np.ndarray] = {}
    for table in tables:
        total = totals.get(table.scope)
        totals[table.scope] = table.costs if total is None else total + table.costs
    yield from (Table(scope, np.broadcast_to(costs, (size,) * len(scope))) for scope, costs in totals.items())
