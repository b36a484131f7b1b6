"""Classes of reasons: what stays the same when a sentence is reworded.

A row is a class and the sentences that belong to it, as regular expressions that are searched for, first match wins. A
reworded sentence gets its own expression beside the old one: `precision` and `class` are compared, never the words.
"""

from __future__ import annotations

import functools
import re

__all__ = ["reason_class"]

_CLASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nothing changed", (r": nothing is changed$",)),
    ("constant", (r"^a constant: converted as its readers need it",)),
    ("no float32", (r"^no float32 tensor goes in or out",)),
    ("reads any", (r"^it takes its input in any precision",)),
    ("user's cast", (r"^the user's own cast keeps its type",)),
    ("control flow", (r"^control flow: ",)),
    ("folded", (r"^computed from constants alone",)),
    ("repaired", (r"^repaired",)),
    ("optimizer", (r"^part of the optimizer",)),
    ("disable_amp", (r"^inside a disable_amp region",)),
    ("fp16_guard", (r"^outside every fp16_guard region",)),
    ("black variable", (r"^reads or writes black variable",)),
    ("constant out of range", (r"^constant reaches ",)),
    ("constant loses digits", (r"^constant of at most ",)),
    ("range seen", (r"^'.*' reaches .*; .* times that is beyond ",)),
    ("no schema", (r"^no schema is known for ",)),
    ("schema forbids", (r"^the schema of .* does not permit ",)),
    ("no kernel", (r"^no b?float16 kernel for ",)),
    ("no such form", (r"cannot have just these inputs low", r"has no form with just these inputs")),
    ("cannot be cast", (r"^it works on an? .*, which cannot be cast",)),
    ("fixed by an attribute", (r"'s attribute fixes the type of its output",)),
    ("untyped inputs", (r"^its inputs may be of any types", r"^no float32 tensor fits its schema")),
    ("keeps its type", (r"^it reinterprets the bits", r"^its scale is float32 by definition")),
    ("one type", (r"has one type for data and statistics",)),
    ("island", (r"^an island: ",)),
    ("border", (r"^at the border: ",)),
    ("part of a whole", (r"^part of .*, which is one operator: ",)),
    ("numerics: squares", (r"^a square that is summed", r"sum of squares$")),
    ("numerics: beyond range", (r"^its input may be beyond float16's range",)),
    ("numerics: index arithmetic", (r"^index arithmetic: ", r"^positions: ")),
    (
        "numerics: operator",
        (
            r"^(exponentials|logarithms) amplify ",
            r"^powers leave ",
            r"^reciprocals of ",
            r"^an exponential inside",
            r"^unbounded ",
            r"^its slope is unbounded",
            r"^a running (sum|product) ",
            r"^a product leaves ",
            r"^a sum (may leave|of magnitudes may leave|of squares may leave) ",
            r"^a logarithm of a sum",
            r"^a sum of squares inside",
            r"^a loss is a long sum",
            r"^it decides integers",
            r"^a long product",
            r"^the remainder of rounded numbers",
            r"^repeated additions into one element",
        ),
    ),
    ("white list", (r"is on the (custom )?white list",)),
    ("extra black list", (r"is on the extra black list",)),
    ("black list", (r"is on the (custom )?black list",)),
    ("not white", (r"is not on the white list",)),
    ("on no list", (r" is on no list$",)),
    ("O2: everything", (r"^level (O2|auto): (everything that can be low|lower precision wherever possible)",)),
    ("gray: low", (r"^gray: the producer of .* is (low|in lower precision)",)),
    ("gray: high", (r"^gray: the producer of .* is (high|float32)",)),
    ("gray: none", (r"^gray: no producer has a precision",)),
    ("promotion: high", (r"^promoted: input .* is float32",)),
    ("promotion: low", (r"^promotion: every float input is (low|in lower precision)",)),
    ("torch: promoted to float32", (r"^torch.*promoted, input ",)),
    ("torch: every input low", (r"^torch.*every float input is (low|in lower precision)",)),
    ("torch: numbers", (r"^torch.*its float inputs are numbers",)),
    ("torch: made in float32", (r"^torch.*(made|computed) in float32",)),
    ("torch: no input", (r"^torch.*no float input (could be low|can be in lower precision)",)),
    ("torch: lower precision", (r"^torch: .* runs in low(er)? precision", r"^torch: the bias of a matrix product")),
    ("torch: float32", (r"^torch: .* runs in float32",)),
    ("raf: data", (r"^RAF: the data of ", r"^RAF: .* has no form with (low data|data in lower precision)")),
    ("raf: always", (r"^RAF: .* (is always low|always runs in lower precision)",)),
    ("raf: never", (r"^RAF: .* (is never low|never runs in lower precision)",)),
    ("raf: follows", (r"^RAF: .* follows (most of its inputs|its first input)",)),
    (
        "raf: concat",
        (r"^RAF: .* (is low|runs in lower precision) if most of its inputs are", r"^RAF: .* is float32 beyond "),
    ),
    ("raf: either", (r"^RAF: .* (is low|runs in lower precision) if an input is",)),
    ("raf: left alone", (r"^RAF: .* is left alone",)),
    ("mxnet: target", (r"is on the target list", r", on the target list$")),
    ("mxnet: fp32", (r"is on the fp32 list",)),
    ("mxnet: widest, low", (r"^widest type: every float input is (there|available)",)),
    ("mxnet: widest, float32", (r"^widest type: .* is not (there|available)",)),
    ("mxnet: neutral, low", (r"^neutral: ",)),
    ("mxnet: neutral, float32", (r"follows its inputs.*none is (there|available) in low",)),
    ("sambanova: mixed gemm", (r"^mixed operator gemm",)),
    ("sambanova: mixed softmax", (r"^mixed operator softmax",)),
    ("sambanova: behind a conversion", (r"^preset default: behind the conversion",)),
    ("sambanova: not GEMM-like", (r"is not GEMM-like",)),
    ("sambanova: not mixed", (r"is none of the mixed operators",)),
    ("sambanova: preset", (r"^preset (mp1|mp4|default): ",)),
    ("wrong kernel", (r" \(NVIDIA \w+, ONNX Runtime [\d.]+\)$", r"^CUDA's \w+ sums \d+ ")),
)


@functools.cache
def reason_class(reason: str) -> str:
    """Return the class of a reason; `unknown` where no row has an expression for it."""
    for name, expressions in _CLASSES:
        if any(re.search(expression, reason) for expression in expressions):
            return name
    return "unknown"
