"""Measures predictions, in Python over batches, or inside a program with `accuracy`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.metric.metrics import (
        Accuracy as Accuracy,
        Auc as Auc,
        Metric as Metric,
        Precision as Precision,
        Recall as Recall,
    )
    from amp_transpiler.paddle.static.evaluation import accuracy as accuracy
else:
    __getattr__, __dir__ = lazy_names(__name__)
