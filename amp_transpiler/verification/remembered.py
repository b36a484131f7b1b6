"""What runs have shown, kept in the user's cache, so that a second question about a model needs few runs.

A record is named by a digest of all that it depends on: the prepared program with its weights, the samples, the low
format, the target, and the versions of what ran.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.graph.digest import Digest, add_model, new_digest
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.user_cache import Records
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.targets.releases import installed_version
from amp_transpiler.version import __version__

__all__ = ["remembered_evidence"]

logger = logging.getLogger(__name__)

_RECORDS = Records("evidence")
_FORMAT = 3  # raised when what is measured changes


def remembered_evidence(
    prepared: Program,
    samples: Sequence[Mapping[str, Any]],
    words: Sequence[str],
    collect: Callable[[], Evidence],
) -> Evidence:
    """Return the evidence of runs, from the cache if they were made before.

    Args:
        prepared: the program that they are of.
        samples: its inputs.
        words: what else they depend on: the low format, the target.
        collect: makes the runs.
    """
    name = _name(prepared, samples, words)
    if (data := _RECORDS.get(name)) is not None and (known := _read(data)) is not None:
        logger.info("the evidence of %d samples comes from the cache", len(known.samples))
        return known
    found = collect()
    _RECORDS.put(name, json.dumps(dataclasses.asdict(found)).encode())
    return found


def _name(prepared: Program, samples: Sequence[Mapping[str, Any]], words: Sequence[str]) -> str:
    digest = new_digest()
    digest.update(repr((_FORMAT, __version__, installed_version(), np.__version__, *words)).encode())
    add_model(digest, prepared.model)
    for sample in samples:
        for name in sorted(sample):
            _add(digest, name, sample[name])
    return digest.hexdigest()


def _add(digest: Digest, name: str, value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _add(digest, f"{name}[{index}]", item)
        return
    array = np.asarray(value)
    digest.update(f"{name} {array.dtype} {array.shape} ".encode())
    digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())


def _read(data: bytes) -> Evidence | None:
    """Return the evidence in a record; None if it cannot be read, which another version may have written."""
    try:
        record = json.loads(data)
        ranges = {name: TensorRange(**found) for name, found in record.pop("ranges").items()}
        return Evidence(ranges=ranges, samples=tuple(record.pop("samples")), **record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a record of evidence in the cache cannot be read, and is made anew: %s", error)
        return None
