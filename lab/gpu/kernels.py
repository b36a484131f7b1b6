"""The kernels of a run as the device saw them, by CUPTI, which PyTorch's profiler brings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from gpu.records import Record, Task

__all__ = ["kernels", "summary"]

STEPS = 3
COSTLIEST = 20
NAME = 110  # characters of a kernel's name


def kernels(
    task: Task, run: Callable[[], object], wait: Callable[[], object] = lambda: None, *, costliest: int = COSTLIEST
) -> Record:
    """Return busy milliseconds, the number of kernels and the costliest of a run; or why they are not known."""
    if task.place != "cuda":
        return {}
    if importlib.util.find_spec("torch") is None:
        return {"no_kernels": "torch not installed"}
    import torch

    if not torch.cuda.is_available():
        return {"no_kernels": "the installed torch has no CUDA"}
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    run()
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            run()
        wait()
        torch.cuda.synchronize()
    return summary(profiler.events(), STEPS, costliest)


def summary(events: Iterable[Any], steps: int, costliest: int = COSTLIEST) -> Record:
    """Return what events of a profile say of one of `steps` equal runs."""
    on_device = [event for event in events if "cuda" in str(event.device_type).lower()]
    totals: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for event in on_device:
        is_copy = event.name.startswith(("Memcpy", "Memset"))
        row = totals[is_copy].setdefault(event.name[:NAME], [0, 0.0])
        row[0] += 1
        row[1] += event.device_time_total if hasattr(event, "device_time_total") else event.cuda_time_total
    rows = {is_copy: _per_run(row, steps) for is_copy, row in totals.items()}
    span = 0.0
    if on_device:
        span = max(event.time_range.end for event in on_device) - min(event.time_range.start for event in on_device)
    return {
        "busy_ms": round(sum(ms for _, _, ms in rows[False]), 4),
        "kernels": round(sum(count for _, count, _ in rows[False]), 1),
        "span_ms": round(span / 1e3 / steps, 4),
        "copies": rows[True],
        "costliest": rows[False][:costliest],
    }


def _per_run(rows: dict[str, list[float]], steps: int) -> list[tuple[str, float, float]]:
    listed = [(name, round(count / steps, 2), round(us / 1e3 / steps, 4)) for name, (count, us) in rows.items()]
    return sorted(listed, key=lambda row: -row[2])
