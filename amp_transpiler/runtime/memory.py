"""Memory that is available or in use: of the machine, this process and CUDA devices."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

__all__ = ["available_memory", "current_memory", "device_memory_in_use", "peak_memory"]

_PROC = pathlib.Path("/proc")
_CGROUP = pathlib.Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # version 1 control groups write a huge number where there is no limit


def available_memory() -> int | None:
    """Return the bytes of main memory that are available, a container's limit included; None if unknown."""
    rooms = [room for room in (_system_memory(), _cgroup_room()) if room is not None]
    return min(rooms) if rooms else None


def peak_memory() -> int | None:
    """Return the largest number of bytes that this process has had resident; None if unknown, as on Windows."""
    peak = _kilobytes(_PROC / "self" / "status", "VmHWM")
    if peak is not None:
        return peak
    try:
        import resource  # not on Linux, where a process inherits this number from its parent
    except ImportError:  # Windows has no such module
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def current_memory() -> int | None:
    """Return the bytes that this process has resident now; its peak if that is unknown; None if both are."""
    return _kilobytes(_PROC / "self" / "status", "VmRSS") or peak_memory()


def device_memory_in_use(device_id: int = 0) -> int | None:
    """Return the bytes that all processes use on a CUDA device; None if the driver does not answer."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), device_id):
        return None
    # ONNX Runtime uses the primary context too. It stays open, so that its memory cancels in differences.
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or driver.cuCtxPushCurrent_v2(context):
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    return None if failed else total.value - free.value


def _system_memory() -> int | None:
    available = _kilobytes(_PROC / "meminfo", "MemAvailable")
    if available is not None:
        return available
    if "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kilobytes(file: pathlib.Path, key: str) -> int | None:
    """Return the bytes of the line `KEY:  1234 kB` of a file in /proc."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return None


def _cgroup_room() -> int | None:
    """Return the bytes that the control group still allows; None without a limit. Page cache counts as available."""
    rooms = []
    for folder, limit_file, usage_file in _cgroup_folders():
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            rooms.append(max(0, limit - usage + _droppable(folder)))
    return min(rooms, default=None)


def _cgroup_folders() -> list[tuple[pathlib.Path, str, str]]:
    """Return the control groups of this process and their ancestors: the limits of all apply."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = pathlib.PurePosixPath(path.lstrip("/"))
        parts = [inner, *inner.parents]  # ends with "."
        if controllers == "":
            folders += [(_CGROUP / part, "memory.max", "memory.current") for part in parts]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            folders += [(_CGROUP / "memory" / part, *names) for part in parts]
    return folders


def _droppable(folder: pathlib.Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(" ", 1) for line in lines)
    return int(counts.get("inactive_file", counts.get("total_inactive_file", 0)))


def _number(file: pathlib.Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit
