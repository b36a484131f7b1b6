"""The options that a mutant is converted with, drawn like the mutant itself."""

from __future__ import annotations

from typing import Any

from amp_transpiler.systems.registry import SYSTEMS
from amp_transpiler.targets import TARGETS
from fuzzing.mutations import source_of_random

_LEVELS = ("auto", "auto", "auto", "O1", "O2", "O2", "OD", "O0")
_DTYPES = ("float16", "float16", "bfloat16")
_PRESETS = ("mp0", "mp1", "mp4", "default")
_PATTERNS = ("Mat", ".*", "^$", "no_such", "(", "relu|add")
_OPSETS = (7, 13, 18, 18, 21, 21, 23, 24, 25, 26, 99)


def draw_options(run: int, index: int, verified: float) -> dict[str, Any]:
    """Return keyword arguments of `transpile` for mutant `index` of a run.

    Args:
        run: the seed of the whole run.
        index: the number of the mutant.
        verified: the share of mutants whose result is verified.
    """
    random_ = source_of_random(run, index, "options")
    options: dict[str, Any] = {"dtype": random_.choice(_DTYPES), "target": random_.choice(sorted(TARGETS))}
    system = random_.random()
    if system < 0.75:
        options["level"] = random_.choice(_LEVELS)
    elif system < 0.92:
        options["policy"] = random_.choice([name for name in SYSTEMS if name != "sambanova"])
    else:
        options |= {"preset": random_.choice(_PRESETS)} if system < 0.97 else {"mixed_ops": "gemm,softmax"}
    options["verify"] = random_.random() < verified
    if random_.random() < 0.25:
        options["keep_io_types"] = False
    if random_.random() < 0.05:
        options["use_promote"] = True
    if random_.random() < 0.1:
        options["tolerance"] = random_.choice([1e-6, 1e-3, 0.1])
    for name in ("guard", "disable_amp", "include"):
        if random_.random() < 0.03:
            options[name] = random_.choice(_PATTERNS)
    if random_.random() < 0.08:
        options["opset"] = random_.choice(_OPSETS)
    return options
