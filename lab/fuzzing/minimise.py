"""Makes a failing mutant smaller: first fewer mutations, then fewer nodes, tensors and declarations."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from fuzzing.attempt import write_mutant
from fuzzing.mutant import ProtobufError
from fuzzing.mutations import Drawn, draw
from fuzzing.outcomes import Outcome
from fuzzing.pool import Pool, Setup, Task
from fuzzing.seeds import all_seeds

_PATIENCE = 60.0  # seconds for one mutant
_FIELDS = ("node", "initializer", "value_info", "input", "output")


def minimise(setup: Setup, failure: Outcome, folder: pathlib.Path) -> Drawn:
    """Find a smaller mutant that fails in the same way, and write it to `folder`.

    Args:
        setup: how mutants are run.
        failure: the outcome to keep.
        folder: gets a folder for the mutant, with a description in `fault.json`.
    """
    seeds, deadline = all_seeds(setup.corpus), time.monotonic() + _PATIENCE
    drawn = draw(setup.run, failure.index, seeds)
    with Pool(dataclasses.replace(setup, jobs=1)) as pool:

        def same(candidate: Drawn) -> bool:
            return time.monotonic() < deadline and _fails_alike(pool, setup, candidate, failure)

        without: set[int] = set()
        for _, position in drawn.steps:
            smaller = draw(setup.run, failure.index, seeds, without | {position})
            if same(smaller):
                without.add(position)
                drawn = smaller
        drawn = _shrink(drawn, same)
    place = folder / f"{failure.kind.replace(' ', '_')}_{setup.run}_{failure.index}"
    if place.exists():
        place = folder / f"{place.name}_{int(time.time())}"
    write_mutant(drawn, place)
    record = {name: getattr(failure, name) for name in Outcome.__dataclass_fields__}
    (place / "fault.json").write_text(json.dumps({**record, "needed": [name for name, _ in drawn.steps]}, indent=1))
    return drawn


def _fails_alike(pool: Pool, setup: Setup, candidate: Drawn, failure: Outcome) -> bool:
    task: Task = {
        **setup.task(failure.index),
        "options": {key: value for key, value in failure.options.items() if key != "inputs"},
        "seed": candidate.seed,
        "steps": [name for name, _ in candidate.steps],
        "level": candidate.level,
        "data": candidate.data.hex(),
        "files": {name: data.hex() for name, data in candidate.files.items()},
    }
    return next(iter(pool.run([task]))).signature == failure.signature


def _shrink(drawn: Drawn, same: Callable[[Drawn], bool]) -> Drawn:
    """Leave out parts of the message one by one, as long as it fails in the same way."""
    try:
        model = onnx.ModelProto.FromString(drawn.data)
    except ProtobufError:
        return drawn
    smallest = drawn
    for owner, field in _fields(model):
        for index in reversed(range(len(getattr(owner, field)))):
            items = [_copy(item) for item in getattr(owner, field)]
            del getattr(owner, field)[index]
            candidate = dataclasses.replace(drawn, data=model.SerializeToString())
            if same(candidate):
                smallest = candidate
            else:
                del getattr(owner, field)[:]
                getattr(owner, field).extend(items)
    return smallest


def _copy(item: Any) -> Any:
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _fields(model: onnx.ModelProto) -> Iterator[tuple[Any, str]]:
    yield model, "functions"
    for field in _FIELDS:
        yield model.graph, field
    yield model, "opset_import"
