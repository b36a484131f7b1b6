"""Recognition of a training step in a loaded program: its state by dataflow, and which nodes are the optimizer's."""

from amp_transpiler.precision.training.additions import with_additions
from amp_transpiler.precision.training.marking import mark_optimizer
from amp_transpiler.precision.training.recognition import find_training_step
from amp_transpiler.precision.training.wishes import TrainingWishes

__all__ = ["TrainingWishes", "find_training_step", "mark_optimizer", "with_additions"]
