"""ONNX Runtime's optimized graphs, kept in the user's cache folder.

An entry is a file whose name is a digest of all that the optimized graph depends on: the model, the settings, the
provider with its options, the versions of this package and of ONNX Runtime, and the machine. `files/user_cache.py` says
where the folder is and how it is bounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import mmap
import os
import pathlib
import platform
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnxruntime

from amp_transpiler.errors import OutputError
from amp_transpiler.files.staging import staging_folder
from amp_transpiler.files.user_cache import base_folder, is_own, keep_within_bounds
from amp_transpiler.runtime import ort
from amp_transpiler.version import __version__

__all__ = ["cache_folder", "open_cached"]

_logger = logging.getLogger(__name__)

_LARGEST = 1 << 30  # bytes of a model: a message beyond 2 GB cannot be written, and folded constants make it larger
_SUFFIX = ".onnx"
_LOCATION = b"\x0a\x08location"  # in the wire format: field 1 of a pair, the key of the file's name

Open: TypeAlias = Callable[[bytes | str | os.PathLike[str], ort.SessionSettings], onnxruntime.InferenceSession]


def cache_folder() -> pathlib.Path | None:
    """Return the folder of optimized graphs, which need not exist; None if there is no cache."""
    base = base_folder()
    if base is None:
        return None
    folder, is_named = base
    folder = folder if is_named else folder / "graphs"
    return folder if is_own(folder) else None


def open_cached(
    model: bytes | str | os.PathLike[str],
    settings: ort.SessionSettings,
    providers: Sequence[ort.Provider],
    device: str,
    open_: Open,
) -> onnxruntime.InferenceSession:
    """Open a session of a model's optimized graph, from the cache if it is there; else keep it there.

    Args:
        model: a serialised model, or the path of one.
        settings: how to open it.
        providers: the providers that it is opened with.
        device: what kind of device that is.
        open_: opens a session with these providers.

    Raises:
        ORT_ERRORS: ONNX Runtime refuses the model.
    """
    plain = dataclasses.replace(settings, cached=False)
    folder, why = cache_folder(), _left_out(model, settings)
    if folder is None or why:
        if why:
            _logger.info("the optimized graph is not kept: %s", why)
        return open_(model, plain)
    place = folder / (_digest(model, plain, (device, *_lasting(providers))) + _SUFFIX)
    cached = _cached_session(place, plain, open_)
    if cached is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with staging_folder(folder) as staging:
            written = staging / "graph.onnx"
            session = open_(model, dataclasses.replace(plain, written_to=os.fspath(written)))
            written.replace(place)
    except (OSError, OutputError) as error:  # no room, no permission: the cache is a help, not a need
        _logger.warning("the optimized graph cannot be kept in %s: %s", folder, error)
        return open_(model, plain)
    keep_within_bounds(folder, _SUFFIX, place)
    return session


def _left_out(model: bytes | str | os.PathLike[str], settings: ort.SessionSettings) -> str:
    """Return why an optimized graph is not kept, or an empty string."""
    if not settings.optimize:
        return "it is not optimized"
    if settings.lean:
        return "ONNX Runtime writes nodes in an order of its own, in which a training step takes more memory"
    if not isinstance(model, bytes) and not pathlib.Path(model).is_file():
        return "there is no such file"  # which ONNX Runtime will say
    size = len(model) if isinstance(model, bytes) else pathlib.Path(model).stat().st_size
    if size > _LARGEST:
        return f"the model has {size >> 20} MB, more than {_LARGEST >> 20}"
    if settings.external_folder is not None or _has_external_data(model):
        return "its weights lie in files of their own"
    return ""


def _has_external_data(model: bytes | str | os.PathLike[str]) -> bool:
    """Whether a model may name files of weights: a message with their key may be something else, and is left out."""
    if isinstance(model, bytes):
        return _LOCATION in model
    with open(model, "rb") as file:  # noqa: PTH123  # any kind of path
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_LOCATION) >= 0


def _digest(model: bytes | str | os.PathLike[str], settings: ort.SessionSettings, where: Sequence[object]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    lasting = dataclasses.replace(settings, provider_options=())  # these are in `where`
    digest.update(repr((_versions(), dataclasses.astuple(lasting), where)).encode())
    if isinstance(model, bytes):
        digest.update(model)
    else:
        with contextlib.suppress(OSError), open(model, "rb") as file:  # noqa: PTH123  # any kind of path
            return hashlib.file_digest(file, lambda: digest).hexdigest()
    return digest.hexdigest()


def _lasting(providers: Sequence[object]) -> list[object]:
    """Return providers without what differs from process to process and does not change the graph: addresses."""
    lasting: list[object] = []
    for provider in providers:
        if isinstance(provider, tuple):
            name, options = provider
            lasting.append((name, sorted((k, v) for k, v in options.items() if k != "user_compute_stream")))
        else:
            lasting.append(provider)
    return lasting


@functools.cache
def _versions() -> tuple[str, ...]:
    built = getattr(onnxruntime, "cuda_version", "")
    # On a CPU the graph is laid out for its vector units.
    return (__version__, onnxruntime.__version__, str(built), platform.machine(), platform.processor(), _flags())


def _flags() -> str:
    """Return the vector units of the processor, as Linux lists them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cached_session(
    place: pathlib.Path, settings: ort.SessionSettings, open_: Open
) -> onnxruntime.InferenceSession | None:
    """Open a session of an entry; None without one. A damaged entry is removed."""
    if not place.is_file() or not is_own(place):
        return None
    try:
        session = open_(os.fspath(place), dataclasses.replace(settings, optimize=False))
    except ort.ORT_ERRORS as error:
        if not place.is_file():  # another process has just removed it
            return None
        _logger.warning("the optimized graph in %s is not used, and removed: %s", place, ort.error_text(error))
        with contextlib.suppress(OSError):
            place.unlink()
        return None
    with contextlib.suppress(OSError):  # read-only for this user
        os.utime(place)
    _logger.info("the optimized graph comes from %s", place)
    return session
