"""Networks that are measured, as static programs and in PyTorch, of the same sizes."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples"))  # some of them are examples
