#!/usr/bin/env python3
"""Train an example in float32, O1, O2 and O2 in bfloat16, and draw the four losses in one picture.

    python examples/compare.py unet --plot docs/assets/examples/unet.png

It prints how far the low ones end from float32: the mean of the last tenth of the losses, relative to that of float32.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
from collections.abc import Mapping, Sequence

from amp_transpiler.errors import EnvironmentProblem
from common import Options, main

EXAMPLES = {  # with their steps
    "lstm_language_model": 200,
    "ocr_lstm": 200,
    "ocr_ctc": 400,
    "llama_lora": 120,
    "unet": 60,
    "gan": 600,
}
WAYS = (("O0", "float16"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16"))


def draw(losses: Mapping[str, Sequence[float]], title: str, path: pathlib.Path) -> None:
    """Draw a curve for each way to train, smoothed over a thirtieth of the steps."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # needs no display
        from matplotlib.figure import Figure
        from PIL import Image  # which matplotlib needs, too
    except ImportError as error:
        raise EnvironmentProblem("drawing needs matplotlib: pip install 'amp-transpiler[plot]'") from error
    figure = Figure(figsize=(7, 4), layout="constrained", dpi=72)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for style, (name, curve) in zip(("-", "--", "-.", ":"), losses.items(), strict=True):
        width = max(1, len(curve) // 30)
        smooth = [sum(curve[i : i + width]) / width for i in range(len(curve) - width + 1)]
        every = max(1, len(smooth) // 100)  # what noise is left would only make the file large
        axes.plot(range(width, len(curve) + 1)[::every], smooth[::every], style, label=name)
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    if path.suffix == ".png":  # few colours are enough, and take half of the bytes
        Image.open(path).convert("RGB").quantize(48).save(path, optimize=True)


def example() -> None:
    """Train in all ways, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--steps", type=int, help="training steps (default: the example's own)")
    parser.add_argument("--seed", type=int, default=1, help="of initial values and data (default: 1)")
    parser.add_argument("--plot", type=pathlib.Path, required=True, help="the picture, such as losses.png")
    chosen = parser.parse_args()
    module = importlib.import_module(chosen.example)
    steps = chosen.steps or EXAMPLES[chosen.example]
    losses: dict[str, list[float]] = {}
    for level, dtype in WAYS:
        name = "float32" if level == "O0" else f"{level} {dtype}"
        losses[name] = module.example(Options(level, dtype, steps, chosen.seed, None))
    ends = {name: sum(curve[-max(1, steps // 10) :]) / max(1, steps // 10) for name, curve in losses.items()}
    for name, end in ends.items():
        print(f"{name}: ends at {end:.4f}, {abs(end / ends['float32'] - 1):.2%} from float32")
    draw(losses, chosen.example.replace("_", " "), chosen.plot)


if __name__ == "__main__":
    raise SystemExit(main(example))
