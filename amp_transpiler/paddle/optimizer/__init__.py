"""Optimizers that append their update to a training program, and learning-rate schedules (`lr`)."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.optimizer import lr as lr
    from amp_transpiler.paddle.optimizer.adadelta import Adadelta as Adadelta
    from amp_transpiler.paddle.optimizer.adagrad import Adagrad as Adagrad
    from amp_transpiler.paddle.optimizer.adam import Adam as Adam
    from amp_transpiler.paddle.optimizer.adamax import Adamax as Adamax
    from amp_transpiler.paddle.optimizer.adamw import AdamW as AdamW
    from amp_transpiler.paddle.optimizer.asgd import ASGD as ASGD
    from amp_transpiler.paddle.optimizer.base import Optimizer as Optimizer
    from amp_transpiler.paddle.optimizer.lamb import Lamb as Lamb
    from amp_transpiler.paddle.optimizer.lars import LarsMomentum as LarsMomentum
    from amp_transpiler.paddle.optimizer.lbfgs import LBFGS as LBFGS
    from amp_transpiler.paddle.optimizer.momentum import Momentum as Momentum
    from amp_transpiler.paddle.optimizer.nadam import NAdam as NAdam
    from amp_transpiler.paddle.optimizer.radam import RAdam as RAdam
    from amp_transpiler.paddle.optimizer.rmsprop import RMSProp as RMSProp
    from amp_transpiler.paddle.optimizer.rprop import Rprop as Rprop
    from amp_transpiler.paddle.optimizer.sgd import SGD as SGD
else:
    __getattr__, __dir__ = lazy_names(__name__)
