"""Why a node has its precision: a code with its values, and the sentence that they make.

A decision carries a `Reason`. Whoever wants to know what it says asks for its code, or for the subject of that, never
for words of the sentence. Reports hold the sentence, which still knows its reason (`reason_of`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amp_transpiler.phrases import counted

__all__ = ["SUBJECTS", "TEMPLATES", "Reason", "Sentence", "reason_of"]

# In a template, `{value}` stands for a value, formatted as by `str.format`; a value in single quotes is a name, which
# `Reason.without_names` leaves out. Two more formats: `{casts:#cast}` is "1 cast" or "2 casts" (`#man|men` gives an
# irregular plural), and `{note:()}` is " (note)", or nothing if the value is empty. A value may be a reason itself.
SUBJECTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "unchanged": {
            "constant": "a constant: converted as its readers need it",
            "control-flow": "control flow: its body is decided node by node",
            "copied": "{asked}: nothing is changed",
            "no-float32": "no float32 tensor goes in or out",
            "reads-any": "it takes its input in any precision",
            "user-cast": "the user's own cast keeps its type",
        },
        "all float32": {
            "float32-before": "float32 before",
            "low-before": "computed in {format} before",
            "no-precision": "it has no precision of its own",
        },
        "user": {
            "black-variable": "reads or writes black variable '{variable}'",
            "custom-black": "{operator} is on the custom black list",
            "custom-types": "{operator} has the types that --custom-op-types declares",
            "custom-white": "{operator} is on the custom white list",
            "data-max": "'{value}' reaches {largest:.4g} in {sample}, above --data-max {most:g}",
            "disable-amp": "inside a disable_amp region",
            "forced": "low by force (--include)",
            "forced-elsewhere": "low by force (--include), though there is {fault}: another provider runs it",
            "forced-faulty": "low by force (--include), though {fault}",
            "init-max": "constant reaches {largest:.4g}, above --init-max {most:g}",
            "kept-input": "no form of {operator} has input {inputs} in float32 and others in {low}",
            "not-guarded": "outside every fp16_guard region",
            "recipe": "as in the recipe: {words}",
            "recipe-silent": "as in the recipe",
            "reduction-depth": "sums {terms} terms into one number, more than --max-depth-of-reduction {most:g}",
        },
        "foreign": {"words": "{words}"},  # a text that somebody else wrote
        "training": {
            "optimizer": "part of the optimizer, which works in float32",
            "update": "part of the update",
        },
        "schema": {
            "any-types": "its inputs may be of any types",
            "bits": "it reinterprets the bits of its input",
            "float32-scale": "its scale is float32 by definition",
            "no-form": "{operator} has no form with just these inputs in lower precision",
            "no-schema": "no schema is known for {domain}::{operator}",
            "no-slot": "no float32 tensor fits its schema",
            "no-tensor": "it works on a {type}, which cannot be cast",
            "one-type": "{operator}-{version} has one type for data and statistics",
            "schema": "the schema of {operator}-{version} does not permit {low}",
        },
        "kernel": {
            "before-recurrence": "{operator} '{node}' is float32 and reads it: TensorRT builds none whose sequence was "
            "cast",
            "in-parts": "computed in {parts} parts, added up in float32: {fault}",
            "mean-beyond-range": "CUDA's {operator} sums {terms} {low} numbers before it divides; means may reach "
            "{mean:.3g}, whose sum is beyond {most:.4g}",
            "no-kernel": "no {low} kernel for {operator}-{version} on {target}",
            "part-of-sum": "a part of a product, or of its sum",
            "seen-mean-beyond-range": "CUDA's {operator} sums {terms} {low} numbers before it divides; {headroom:g} "
            "times the mean of the data is {mean:.3g}, whose sum is beyond {most:.4g}",
            "wrong-kernel": "{operator} in {low} {fault} ({device}, ONNX Runtime {release})",
            "wrong-kernel-inside": "CUDA computes {operator} by its definition: {fault}",
        },
        "constant": {
            "bound": "bound {bound:.7g} becomes {rounded:.7g} in {low}",
            "constant-beyond-range": "constant reaches {largest:.3g}, beyond {low}'s {most:g}",
            "constant-loses-digits": "constant of at most {largest:.3g} loses {loss:.0%} to rounding in {low}",
            "folded": "computed only from constants: folded when the model is loaded",
        },
        "range": {
            "range": "'{value}' reaches {largest:.4g} in {sample}; {headroom:g} times that is beyond {low}'s "
            "{most:.4g}",
        },
        "numerics": {
            "after-large-constant": "its input may be beyond float16's range: it was computed with a mask or another "
            "large constant",
            "difference-of-squares": "a variance as a difference of squares, of which bfloat16 keeps few digits",
            "grows": "it grows with an open size: a longer input leaves the range, whatever shorter ones show",
            "index": "index arithmetic: computed only from integers",
            "near-zero": "{operator} is steep near zero: {fault}",
            "normalises-by-squares": "it normalises by a sum of squares",
            "on-squares": "it works on a sum of squares",
            "position": "positions: computed only from integers, which is float32 in part",
            "read-near-zero": "{operator} '{node}', steep near zero, reads it: {fault}",
            "scatter-sum": "repeated additions into one element lose small terms",
            "size": "it computes a size: another rounding may change a shape",
            "small-bound": "'{value}' may be as small as its bound {bound:.3g}, below {least:.3g}",
            "small-seen": "'{value}' is as small as {smallest:.3g} in the data, below {headroom:g} times {normal:.3g}",
            "small-unknown": "no data show how small '{value}' may be",
            "square": "a square that is summed may leave the range",
            "square-sum": "a sum of squares",
            "unsafe-operator": "{effect}",
            "written-mean": "a mean to subtract, as a sum and its quotient: bfloat16 would round both, and the count",
        },
        "neighbours": {
            "held": "it is decided with '{node}', which is float32: {fault}",
            "island": "an island: lower precision costs {casts:#more cast} for {operators:#cheap operator}",
            "island-moves": "an island: lower precision costs {casts:#more cast} for nodes that only move values",
            "island-no-faster": "an island: predicted to be no faster in lower precision",
            "island-no-faster-casts": "an island: predicted to be no faster in lower precision, with "
            "{casts:#more cast}",
            "island-quantized": "an island: it lies between quantized operators, and nothing there computes",
            "island-quantized-casts": "an island: {casts:#cast of a quantized value|casts of quantized values} for "
            "{operators:#operator that computes|operators that compute}",
            "whole": "part of {pattern}, which is one operator: {fault}",
        },
        "time": {"float32-faster": "predicted to be faster in float32"},
        "tolerance": {
            "tolerance-casts": "for the tolerance: its neighbours are float32, and casts around it would add to the "
            "error",
            "tolerance-error": "for the tolerance: in {low} it would add to the error of output '{output}'",
            "tolerance-spoils": "for the tolerance: in {low} it overflows on the data, or spoils output '{output}'",
        },
        "paddle": {
            "black": "{operator} is on the black list{why:()}",
            "black-lifted": "level {level} lifts the black list, which {operator} is on",
            "extra-black": "{operator} is on the extra black list{why:()}",
            "gray": "{operator} is on the gray list: it follows its producers",
            "gray-high": "gray: the producer of '{input}' is float32",
            "gray-low": "gray: the producer of '{input}' is in lower precision",
            "gray-neutral": "gray: no producer has a precision of its own",
            "level-changes-nothing": "level {level} changes nothing",
            "not-white": "level {level}: {operator} is not on the white list",
            "promoted": "promoted: input '{input}' is float32",
            "promotion-low": "promotion: every float input is in lower precision",
            "pure": "level {level}: lower precision wherever possible",
            "unlisted": "{operator} is on no list",
            "white": "{operator} is on the white list{why:()}",
        },
        "torch": {
            "torch-all-low": "{kind}: every float input is in lower precision",
            "torch-bias": "torch: the bias of a matrix product is part of linear, in lower precision",
            "torch-falls-through": "torch: {function} is not cast and follows its inputs",
            "torch-float32": "torch: {function} runs in float32",
            "torch-low": "torch: {function} runs in lower precision",
            "torch-no-input": "{kind}: computed in float32, no float input sets another type",
            "torch-none-low": "{kind}: no float input can be in lower precision",
            "torch-numbers": "{kind}: its float inputs are numbers, which are float32",
            "torch-promoted": "{kind}: promoted, input '{input}' is float32",
            "torch-unknown": "torch has no {operator}: it falls through",
            "torch-widest": "torch: {function} runs in the widest type of its inputs",
        },
        "mxnet": {
            "mxnet-bias": "the bias of a matrix product is part of FullyConnected, on the target list",
            "mxnet-conditional": "conditional: {operator} with {attribute}={setting}",
            "mxnet-follows": "{operator} follows its inputs{why:()}: none is available in lower precision",
            "mxnet-fp32": "{operator} is on the float32 list{why:()}",
            "mxnet-neutral": "neutral: '{input}' is available in lower precision",
            "mxnet-target": "{operator} is on the target list{why:()}",
            "mxnet-widest-high": "widest type: '{input}' is not available in lower precision",
            "mxnet-widest-low": "widest type: every float input is available in lower precision",
        },
        "raf": {
            "casting-rule-inputs": "the user's casting rule for {operator} wants inputs {inputs} in lower precision",
            "casting-rule-low": "the user's casting rule for {operator} wants its inputs in lower precision",
            "casting-rule-none": "the user's casting rule for {operator} wants no input in lower precision",
            "raf-always": "RAF: {operator} always runs in lower precision ({names})",
            "raf-concat": "RAF: {operator} runs in lower precision if most of its inputs are: {low} of {inputs} inputs "
            "in lower precision ({names})",
            "raf-concat-long": "RAF: {operator} is float32 beyond {most} inputs ({names})",
            "raf-data": "RAF: the data of {operator} are always in lower precision, its parameters keep their type "
            "({names})",
            "raf-data-no-form": "RAF: {operator} has no form with data in lower precision and float32 statistics "
            "({names})",
            "raf-either": "RAF: {operator} runs in lower precision if an input is: {low} of {inputs} inputs in lower "
            "precision ({names})",
            "raf-follow-high": "RAF: {operator} follows its first input, which is float32 ({names})",
            "raf-follow-low": "RAF: {operator} follows its first input, which is in lower precision ({names})",
            "raf-infer": "RAF: {operator} follows most of its inputs: {low} of {inputs} inputs in lower precision "
            "({names})",
            "raf-never": "RAF: {operator} never runs in lower precision ({names})",
            "raf-no-input": "RAF: {operator} is left alone: it has no float input that counts ({names})",
            "raf-none": "RAF: {operator} is left alone ({names})",
            "raf-outputs": "RAF: {operator} is left alone: it has several outputs ({names})",
            "raf-unknown": "RAF has no rule for {operator}",
        },
        "sambanova": {
            "after-conversion": "preset default: behind the conversion to float32 '{cast}', kept as written",
            "mixed-gemm": "mixed operator gemm: inputs in lower precision, result cast to float32",
            "mixed-softmax": "mixed operator softmax: input in float32, result in lower precision",
            "not-gemm": "preset {preset}: {operator} is not GEMM-like and stays as written",
            "not-mixed": "{operator} is none of the mixed operators and stays as written",
            "preset": "preset {preset}: {effect}",
        },
    }
)
"""Subject -> its codes, each with the template of its sentence."""

TEMPLATES: Mapping[str, str] = MappingProxyType(
    {code: template for templates in SUBJECTS.values() for code, template in templates.items()}
)
"""Code -> the template of its sentence."""

_SUBJECT_OF = {code: subject for subject, templates in SUBJECTS.items() for code in templates}
_WORDS = "words"  # the value that is a sentence of somebody else's, as a recipe has one

# A quoted name. Letters around a quote mark make it an apostrophe: that of "torch's" opens no name, and that inside of
# 'it's' closes none.
_QUOTED = re.compile(r"(?<!\w)'.*?'(?!\w)")
_NO_NAME = "..."


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a node has its precision; as text it is one sentence.

    Attributes:
        code: what the reason is: a key of `TEMPLATES`.
        values: what stands in the places of the template: texts, numbers, and reasons.
    """

    code: str
    values: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        assert self.values.keys() == _places(self.code), f"{self.code} has places for {set(_places(self.code))}"

    @property
    def subject(self) -> str:
        """The key of `SUBJECTS` that the code is listed under."""
        return _SUBJECT_OF[self.code]

    def __str__(self) -> str:
        return self._rendered(named=True)

    def without_names(self) -> str:
        """Return the sentence with `'...'` for every quoted name: it is the same for reasons that differ only there."""
        return self._rendered(named=False)

    def _rendered(self, *, named: bool) -> str:
        texts = []
        for piece in _pieces(self.code):
            texts.append(piece.literal)
            if piece.name is not None:
                hidden = piece.is_quoted and not named
                texts.append(_NO_NAME if hidden else piece.text(self.values[piece.name], named=named))
        return "".join(texts)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Reason:
        """Return the reason of a record, which `dataclasses.asdict` made.

        Raises:
            KeyError: no reason has this code with these values, or it is no record.
        """
        code, values = str(record["code"]), record["values"]
        if code not in TEMPLATES or values.keys() != _places(code):
            raise KeyError(code)
        return cls(code, {k: cls.of_record(v) if isinstance(v, Mapping) else v for k, v in values.items()})


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a template: words, and the value after them, if one follows."""

    literal: str
    name: str | None
    spec: str
    is_quoted: bool

    def text(self, value: object, *, named: bool) -> str:
        if isinstance(value, Reason):
            return str(value) if named else value.without_names()
        if self.spec.startswith("#"):
            assert isinstance(value, int), "a number of things"
            singular, _, plural = self.spec[1:].partition("|")
            return f"{value} {plural}" if plural and value != 1 else counted(value, singular)
        if self.spec == "()":
            return f" ({value})" if value else ""
        if self.name == _WORDS and not named:
            return _QUOTED.sub(f"'{_NO_NAME}'", str(value))
        return format(value, self.spec)


@functools.cache
def _pieces(code: str) -> tuple[_Piece, ...]:
    parts = [*string.Formatter().parse(TEMPLATES[code]), ("", None, None, None)]
    return tuple(
        _Piece(literal, name, spec or "", literal.endswith("'") and after.startswith("'"))
        for (literal, name, spec, _), (after, *_) in itertools.pairwise(parts)
    )


@functools.cache
def _places(code: str) -> frozenset[str]:
    return frozenset(piece.name for piece in _pieces(code) if piece.name is not None)


class Sentence(str):
    """The sentence of a reason, for reports: a plain text, which still knows the reason."""

    __slots__ = ("reason",)
    reason: Reason

    @classmethod
    def of(cls, reason: Reason) -> Sentence:
        """Return the sentence of a reason."""
        sentence = cls(reason)
        sentence.reason = reason
        return sentence


def reason_of(text: str) -> Reason:
    """Return the reason that a sentence was made of; a text that somebody else wrote says only itself."""
    return text.reason if isinstance(text, Sentence) and hasattr(text, "reason") else Reason("words", {_WORDS: text})
