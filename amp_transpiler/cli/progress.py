"""The progress bar."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from amp_transpiler.cli.options import Options
from amp_transpiler.errors import visible

__all__ = ["PHASES", "progress_bar"]

PHASES = (
    "load",
    "optimize",
    "prepare",
    "check source",
    "run float32",
    "calibrate",
    "convert",
    "compare",
    "find errors",
    "rescale",
    "find parts",
    "predict",
    "write",
    "check result",
)
_SECONDS_BEFORE_IT_SHOWS = 1.0


@contextlib.contextmanager
def progress_bar(title: str, options: Options) -> Iterator[Callable[[str, float], None] | None]:
    """Show a bar once the work has taken a second; yield the function that moves it, None where no bar is shown."""
    if options.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[model]}  {task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    task = bar.add_task("", total=len(PHASES), model=visible(title))

    def advance(phase: str, done: float) -> None:
        reached = PHASES.index(phase) + done if phase in PHASES else 0.0
        # A search returns to an earlier phase, but the bar never moves back.
        bar.update(task, description=phase, completed=max(reached, bar.tasks[0].completed))

    timer = threading.Timer(_SECONDS_BEFORE_IT_SHOWS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()  # It may be starting the bar right now.
        bar.stop()
