"""Passes over training programs: operators that ONNX Runtime cannot train with, masters, and loss scaling."""

from amp_transpiler.passes.training.add_in_place import AddInPlace
from amp_transpiler.passes.training.cancel_transposes import CancelTransposes
from amp_transpiler.passes.training.cast_together import CastTogether
from amp_transpiler.passes.training.check_by_products import CheckByProducts
from amp_transpiler.passes.training.drop_identities import DropIdentities
from amp_transpiler.passes.training.fuse_biases import FuseBiases
from amp_transpiler.passes.training.fuse_products import FuseProducts
from amp_transpiler.passes.training.fuse_skip_norms import FuseSkipNorms
from amp_transpiler.passes.training.group_plan import CPU_WORTH, CUDA_WORTH, Worth
from amp_transpiler.passes.training.group_updates import Grouped, GroupUpdates, group_members
from amp_transpiler.passes.training.insert_masters import InsertMasters, Mastered
from amp_transpiler.passes.training.join_products import JoinProducts
from amp_transpiler.passes.training.legalize import Legalize
from amp_transpiler.passes.training.lower_batch_norm import LowerBatchNorm
from amp_transpiler.passes.training.lower_dropout import LowerDropout
from amp_transpiler.passes.training.lower_loss import LowerLoss
from amp_transpiler.passes.training.mean_by_products import MeanByProducts
from amp_transpiler.passes.training.merge_equal import MergeEqual
from amp_transpiler.passes.training.move_row_factors import MoveRowFactors
from amp_transpiler.passes.training.place_casts import VIEWS, PlaceCasts
from amp_transpiler.passes.training.plain_for_cpu import PlainForCpu
from amp_transpiler.passes.training.read_unrounded import ReadUnrounded
from amp_transpiler.passes.training.recompute import (
    Recompute,
    ask_for_recompute,
    is_recompute_asked,
)
from amp_transpiler.passes.training.scale_loss import Scaled, ScaleLoss
from amp_transpiler.passes.training.simplify_concats import SimplifyConcats
from amp_transpiler.passes.training.slice_known_rows import SliceKnownRows
from amp_transpiler.passes.training.split_rows import SplitRows
from amp_transpiler.passes.training.split_scatters import SplitScatters
from amp_transpiler.passes.training.sum_by_products import SumByProducts
from amp_transpiler.passes.training.weight_gradients import Formulation, WeightGradients
from amp_transpiler.passes.training.write_in_place import WriteInPlace
from amp_transpiler.passes.training.zero_pads import PadInLow

__all__ = [
    "CPU_WORTH",
    "CUDA_WORTH",
    "VIEWS",
    "AddInPlace",
    "CancelTransposes",
    "CastTogether",
    "CheckByProducts",
    "DropIdentities",
    "Formulation",
    "FuseBiases",
    "FuseProducts",
    "FuseSkipNorms",
    "GroupUpdates",
    "Grouped",
    "InsertMasters",
    "JoinProducts",
    "Legalize",
    "LowerBatchNorm",
    "LowerDropout",
    "LowerLoss",
    "Mastered",
    "MeanByProducts",
    "MergeEqual",
    "MoveRowFactors",
    "PadInLow",
    "PlaceCasts",
    "PlainForCpu",
    "ReadUnrounded",
    "Recompute",
    "ScaleLoss",
    "Scaled",
    "SimplifyConcats",
    "SliceKnownRows",
    "SplitRows",
    "SplitScatters",
    "SumByProducts",
    "WeightGradients",
    "Worth",
    "WriteInPlace",
    "ask_for_recompute",
    "group_members",
    "is_recompute_asked",
]
