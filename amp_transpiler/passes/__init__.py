"""Passes that edit programs, one a file, each carrying out a decision made elsewhere; `manager` runs them.

Those that few models need are names of this package, so that their modules are imported when they are used.
"""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.passes.fill_sums import FillSums as FillSums
    from amp_transpiler.passes.fold_batch_norm import FoldBatchNorm as FoldBatchNorm
    from amp_transpiler.passes.fold_constants import FoldConstants as FoldConstants
    from amp_transpiler.passes.fold_known_sizes import FoldKnownSizes as FoldKnownSizes
    from amp_transpiler.passes.guard_caches import GuardCaches as GuardCaches
    from amp_transpiler.passes.guard_fusions import GuardFusions as GuardFusions
    from amp_transpiler.passes.guard_transposes import GuardTransposes as GuardTransposes
    from amp_transpiler.passes.guard_vectors import GuardVectors as GuardVectors
    from amp_transpiler.passes.inline_functions import InlineFunctions as InlineFunctions
    from amp_transpiler.passes.manager import (
        Pass as Pass,
        PassFor as PassFor,
        PassManager as PassManager,
        PassResult as PassResult,
        run_pass as run_pass,
    )
    from amp_transpiler.passes.part_fusions import PartFusions as PartFusions
    from amp_transpiler.passes.sign_rotations import SignRotations as SignRotations
    from amp_transpiler.passes.skip_expand_checks import SkipExpandChecks as SkipExpandChecks
    from amp_transpiler.passes.skip_identities import SkipIdentities as SkipIdentities
    from amp_transpiler.passes.spell_defaults import SpellDefaults as SpellDefaults
    from amp_transpiler.passes.spell_norms import SpellNorms as SpellNorms
    from amp_transpiler.passes.unify_constants import UnifyConstants as UnifyConstants
else:
    __getattr__, __dir__ = lazy_names(__name__)
