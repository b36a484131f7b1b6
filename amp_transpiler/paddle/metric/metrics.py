"""Computes accuracy, precision, recall and area under the curve of all batches so far."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments

__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall"]


class Metric(abc.ABC):
    """A measure: `update` takes a batch of fetched arrays, `accumulate` returns the measure of all batches so far."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abc.abstractmethod
    def update(self, *args: Any) -> Any:
        """Take a batch."""

    @abc.abstractmethod
    def accumulate(self) -> Any:
        """Return the measure of all batches so far."""

    @abc.abstractmethod
    def name(self) -> Any:
        """Return its name."""

    def compute(self, *args: Any) -> Any:
        """Return what `update` takes, given predictions and labels: these themselves, unless a subclass differs."""
        return args


class Accuracy(Metric):
    """Measures the part of the samples whose label is among the best scores.

    Args:
        topk: how many scores count: one number, or several.
        name: its name.
    """

    def __init__(self, topk: int | Sequence[int] = (1,), name: str | None = None) -> None:
        self.topk = [topk] if isinstance(topk, int) else [int(k) for k in topk]
        if not self.topk or min(self.topk) < 1:
            raise OptionError(f"Accuracy: topk must be positive numbers, got {topk!r}")
        self._name = name or "acc"
        self.reset()

    def compute(self, pred: Any, label: Any, *args: Any) -> np.ndarray:
        """Return which of the best scores are the label's: [samples, largest k], 0 or 1.

        Args:
            pred: scores, [samples, classes].
            label: classes, [samples] or [samples, 1], or one-hot, [samples, classes].
            args: Paddle's, no effect.
        """
        del args
        scores, labels = np.asarray(pred), np.asarray(label)
        if labels.ndim > 1 and labels.shape[-1] == scores.shape[-1] > 1:
            labels = labels.argmax(-1)
        best = np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")[..., : max(self.topk)]
        hits: np.ndarray = (best == labels.reshape(*best.shape[:-1], 1)).astype(np.float32)
        return hits

    def update(self, correct: Any, *args: Any) -> Any:
        """Take what `compute` returned; return the accuracy of this batch, one for each k."""
        del args
        hits = np.asarray(correct)
        if hits.ndim == 0 or hits.dtype.kind not in "fiub" or hits.shape[-1] < max(self.topk):
            raise InputError(
                f"Accuracy.update takes what compute returned, [..., {max(self.topk)}], got {correct!r:.80}"
            )
        count = int(np.prod(hits.shape[:-1]))
        accuracies = []
        for number, k in enumerate(self.topk):
            right = float(hits[..., :k].sum())
            self.total[number] += right
            self.count[number] += count
            accuracies.append(right / count if count else 0.0)
        return accuracies[0] if len(accuracies) == 1 else accuracies

    def reset(self) -> None:
        """Forget all batches."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def accumulate(self) -> Any:
        """Return the accuracy of all batches, one for each k."""
        accuracies = [right / count if count else 0.0 for right, count in zip(self.total, self.count, strict=True)]
        return accuracies[0] if len(accuracies) == 1 else accuracies

    def name(self) -> list[str]:
        """Return its name, one for each k."""
        return [self._name] if max(self.topk) == 1 else [f"{self._name}_top{k}" for k in self.topk]


class _Positives(Metric):
    """Counts positive predictions and labels.

    Args:
        name: its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.tp = self.fp = self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Take probabilities, positive from 0.5 on, and labels, 0 or 1."""
        said, true = _column(preds, "preds") > 0.5, _column(labels, "labels") > 0.5
        if said.shape != true.shape:
            raise InputError(f"{type(self).__name__}: {said.size} predictions, but {true.size} labels")
        self.tp += int((said & true).sum())
        self.fp += int((said & ~true).sum())
        self.fn += int((~said & true).sum())

    def name(self) -> str:
        """Return its name."""
        return self._name


class Precision(_Positives):
    """Measures the part of the samples called positive that are positive.

    Args:
        name: its name.
    """

    def __init__(self, name: str = "precision") -> None:
        super().__init__(name)

    def accumulate(self) -> float:
        """Return the precision of all batches, 0 if nothing was called positive."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Positives):
    """Measures the part of the positive samples that were called positive.

    Args:
        name: its name.
    """

    def __init__(self, name: str = "recall") -> None:
        super().__init__(name)

    def accumulate(self) -> float:
        """Return the recall of all batches, 0 if nothing was positive."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(Metric):
    """Measures the area under the curve of true over false positives, from counts in bins.

    Args:
        curve: `ROC`.
        num_thresholds: one less than the number of bins.
        name: its name.

    Raises:
        OptionError: another curve is asked for.
    """

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc") -> None:
        if curve != "ROC":
            raise OptionError(f"Auc: curve must be 'ROC', got {curve!r}")
        self._bins, self._name = num_thresholds + 1, name
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._positive, self._negative = (np.zeros(self._bins, np.int64) for _ in range(2))

    def update(self, preds: Any, labels: Any) -> None:
        """Take probabilities, [samples, 2] or only of the positive class, and labels, 0 or 1."""
        scores = np.asarray(preds, np.float64)
        scores = scores[:, 1] if scores.ndim == 2 and scores.shape[1] == 2 else scores.reshape(-1)
        places, truth = (scores * (self._bins - 1)).astype(np.int64), _column(labels, "labels") > 0.5
        if places.shape != truth.shape or (places.size and not 0 <= places.min() <= places.max() < self._bins):
            raise InputError("Auc: preds must be probabilities, as many as labels")
        self._positive += np.bincount(places[truth], minlength=self._bins)
        self._negative += np.bincount(places[~truth], minlength=self._bins)

    def accumulate(self) -> float:
        """Return the area of all batches, 0 if one class is missing."""
        positive, negative = self._positive.astype(np.float64), self._negative.astype(np.float64)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - 0.5 * negative
        return float((positive * below).sum() / pairs) if pairs else 0.0

    def name(self) -> str:
        """Return its name."""
        return self._name


def _column(values: Any, what: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise InputError(f"{what} must be [samples] or [samples, 1], got shape {list(array.shape)}")
    return array.reshape(-1)


check_arguments(globals(), __all__)
