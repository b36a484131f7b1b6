"""The feature table: what each system does, a row a feature, and the tests that show it here, one a cell that says yes.

A test of `test_features_*.py` says which cell it shows by `@cell(feature, system)`. `test_feature_table.py` asserts
that none is missing.
"""

from collections.abc import Callable
from typing import TypeVar

SYSTEMS = ("Paddle static", "RAF", "SambaNova", "PyTorch", "MXNet 2")

TABLE = """
| feature | Paddle static | RAF | SambaNova | PyTorch | MXNet 2 |
|---|---|---|---|---|---|
| form | static program rewrite | IR pass (let-list) | compiler pass | runtime dispatch | symbol graph pass + runtime patching |
| low dtypes | fp16, bf16 | fp16 (bf16 claimed) | bf16 | fp16, bf16 | fp16, bf16 |
| list mode | O1 white/gray/black | always/infer/never | mp1 | fp16/fp32/promote | LP/fp32/neutral/widest/conditional |
| pure mode | O2 / use_pure_fp16 | no | mp4, default | `.half()` manual | no (offline cast only) |
| white-only mode | OD | no | mp1 | no | via lists |
| unlisted op | O1: fp32; O2: low if supported | fatal error | follows input | follows/promotes inputs | neutral; unknown names in user lists rejected |
| gray/promotion rule | black producer wins, else white producer (V1) | majority of args, tie→low | upstream propagation | widest | low iff all inputs low without new casts |
| per-op override | custom white/black | CustomTypeHint function per arg | enable-mixed-precision-ops | custom_fwd/bwd | target_dtype_ops, fp32_ops (replace) |
| per-tensor override | custom_black_varnames | no | explicit dtype in code | explicit cast | no |
| per-node override | fp16_guard (opt-in) | no | disable_graphamp (opt-out) | autocast(enabled=False) | excluded_sym_names, disable_amp() |
| attribute-conditional | no | rule sees types only | no | no | conditional_fp32_ops |
| list conflict | ValueError | n/a | n/a | n/a | AssertionError |
| param storage | O1 fp32, O2 low + masters | fp32, cast in graph | bf16 + fp32 copy (flag) | fp32 | fp32 or offline low |
| shared param | fp32 if any consumer demands it | cast per use | – | cached cast | fp32 if any consumer not low |
| norm params | fp32 kept for BN/LN/IN | fp32 (BN, LN-train) | – | fp32 (LN op fp32) | fp32 (BN via type inference) |
| cast dedup | one per (var,dtype), block chain | cached unless consumer fuseable | – | weight cache | one per (tensor,dtype) |
| back-to-back cast removal | no | yes | – | n/a | no (fusion on oneDNN) |
| graph output dtype | whatever results (loss forced fp32) | raf.amp.out_dtype | – | whatever results | original restored |
| graph input dtype | kept (V2); V1 pure may flip | kept | kept | kept | kept; input_dtypes required |
| control flow | sub-blocks visited (V2) | If visited, untyped | – | dynamic | subgraph ops neutral |
| int/double tensors | untouched | untouched | – | untouched, double ignored | untouched |
| master weights | multi_precision, `_fp32_master` | implicit | --fp32-params | implicit | optimizer multi_precision (mp_*) |
| master grads | master_grad | no | --weight-grad-reduce | grads follow params fp32 | no |
| loss scale start | 2^15 (old) / 2^16 | none | none | 2^16 | 2^16 |
| grow / every | ×2 / 1000 or 2000 | – | – | ×2 / 2000 | ×2 / 2000, cap 2^24 |
| shrink / after | ×0.8 / 2 or ×0.5 / 1 | – | – | ×0.5 / 1 | ×0.5 / 1 |
| floor | 1.0 | – | – | none | none |
| on overflow | grads zeroed; Adam skips | – | – | step skipped | update skipped |
| bf16 scaling | disabled | – | none | usually off | none |
| device capability | unsupported = ops without kernel | TVM patterns | compiler | n/a | type inference |
| stats / audit | collect_operator_stats | #cast counting in tests | – | – | coverage test |
| user cast | honoured, not re-typed | folded when redundant | stops default preset | honoured | honoured |
| accuracy bar in own tests | rtol 1e-2 losses | 1e-1 conv, 1e-3 LeNet | – | bitwise vs control | 1e-2 per op |
"""

NOT_THERE = ("no", "n/a", "–", "none")  # what a cell begins with where the system does not have the feature

_Test = TypeVar("_Test", bound=Callable[..., object])


def cells() -> dict[tuple[str, str], str]:
    """(feature, system) -> what the cell says."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()]
    header, body = rows[0], rows[2:]
    return {(row[0], system): said for row in body for system, said in zip(header[1:], row[1:], strict=True)}


def says_yes(said: str) -> bool:
    """Whether a cell says that the system has the feature."""
    return said.split(maxsplit=1)[0].rstrip(",;") not in NOT_THERE


def cell(feature: str, system: str) -> Callable[[_Test], _Test]:
    """Return a decorator that marks a test as the one of a cell; a test may show several."""
    if (feature, system) not in cells():
        raise KeyError(f"the table has no cell {feature!r} of {system!r}")

    def mark(test: _Test) -> _Test:
        test.cells = [*getattr(test, "cells", []), (feature, system)]  # type: ignore[attr-defined]  # an attribute of ours
        return test

    return mark
