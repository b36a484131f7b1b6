"""Text for the language models: this project's own pages and source, as numbers, one a character."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

__all__ = ["CHARACTERS", "PAGES", "SOURCE", "Text", "words"]

_ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md")))
SOURCE = tuple(sorted((_ROOT / "amp_transpiler" / "graph").glob("*.py")))
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


class Text:
    """Files as numbers; characters outside of ASCII are left out.

    Args:
        files: their texts are joined.
    """

    def __init__(self, files: Iterable[pathlib.Path]) -> None:
        place = {character: number for number, character in enumerate(CHARACTERS)}
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        self.numbers = np.array([place[character] for character in text if character in place], np.int64)

    def batches(self, size: int, length: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield pieces of text [size, length], and the same pieces one character later."""
        rng = np.random.default_rng(seed)
        while True:
            starts = rng.integers(0, len(self.numbers) - length - 1, size)
            pieces = np.stack([self.numbers[start : start + length + 1] for start in starts])
            yield {"text": pieces[:, :-1], "next": pieces[:, 1:]}


def words(numbers: Iterable[int]) -> str:
    """Return numbers as text, in one line."""
    return "".join(CHARACTERS[number] for number in numbers).replace("\n", " ")
