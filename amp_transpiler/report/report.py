"""Defines the report as users have it: the record, with its forms as methods."""

from __future__ import annotations

import dataclasses
import os

from amp_transpiler.errors import InputError
from amp_transpiler.report.record import ReportRecord

__all__ = ["Report"]


@dataclasses.dataclass(slots=True, repr=False)
class Report(ReportRecord):
    """The outcome of one conversion. A notebook shows it as a short page, `repr` in a line or two.

    Attributes:
        source: the model's path, or a description of the object it came from.
        destination: where the result was written, or None.
        level: the level that decided; None for a system without levels.
        dtype: the low format.
        target: whose kernels counted.
        ort: the version of ONNX Runtime whose kernels, opset and IR version counted.
        system: whose rules decided: `paddle`, `torch`, `raf`, `mxnet` or `sambanova` (presets and mixed operators).
        asked: the requested level, policy or preset, in words; the level unless given.
        is_copy: the request changes nothing (level O0, preset mp0), so the result is a copy of the source.
        program: the converted program.
        graphs: where the program is gone, since another process converted it: its graph and each body, without
            weights, for a picture: pairs of a path and an `Outline`.
        decisions: one row a node of the float32 program (functions inlined).
        nodes: number of decided nodes, `len(decisions)`.
        low_nodes, high_nodes: how many of them run in the low format and in float32.
        kept_float32: a low format was asked for, and level auto has left the whole model in float32.
        casts: Cast nodes that the conversion inserted.
        casts_removed: Cast nodes of the source that it removed.
        casts_at: where the inserted casts are, one row each.
        device: the device that times are predicted for; empty if none are.
        times: predicted times of one run, or what predicts them when they are first asked for.
        prices: adds bytes, predicted time and its bound to the rows of `decisions`, until `priced_decisions` has asked.
        frontier: what else could have been chosen, from float32 to all low; empty if no other was looked at.
        headroom: how many times the seen range of a node must fit in the low format; None where no range was seen.
        opset: version of ONNX's own operators before and after; 0: the model imports none of them.
        weight_bytes: bytes of initializers and tensor constants before and after.
        file_bytes: bytes of the files on disk before and after, external data included; None if not on disk.
        missing_kernels: operator -> number of nodes that stay float32 because the target has no low kernel.
        states: of a training step: each state, its role, why it is one, and its master.
        steps: of a training step: how far its states came in several steps, in float32 and in the result; None if none
            was found, or nothing was compared.
        outputs: graph output -> comparison; empty if nothing was compared.
        gains: level of the given signals and pictures, such as `at a tenth` -> the largest error of an output there;
            `outputs` and `draws` are those of the worst one. Empty where no other level ran.
        draws: what a device may make of the result, its kernels' arithmetic emulated; None where that was not done.
        by_default: output -> its relative error in ONNX Runtime's default session on the CPU, which is among those that
            `outputs` are the worst of; empty where the search did not run it.
        measured: what a device computed with the written file; None where none did.
        engine: what TensorRT's builder made of the written file; None where it was not asked.
        metric: the user's own measure; None without one.
        verdict: one line: one of the words of `Verdict`, then after `: ` what it rests on.
        checks: the checks that passed, in order, a short phrase each.
        warnings: for the user: results that no limit forbids, but that look wrong.
        notes: for the user: faults of the source, outputs that could not be compared, repairs.
        fused: operators that `fuse` or ONNX Runtime's optimizer put in -> how many; empty without both.
        rescaled: constants, or attributes of nodes, that were multiplied by powers of two -> the exponents; see
            `--rescale`.
        in_parts: products, by node name, that are computed in parts added up in float32 -> how many; see
            `--split-sums`.
        repaired: nodes made float32 because the first result was not accurate enough.
        settings: the options that differ from their defaults, as a recipe holds them.
        seconds: wall-clock time of the whole conversion.
        phases: phase -> seconds.
        session_options: what sessions of the result on CUDA should have beside ONNX Runtime's defaults; its file says
            so in its metadata, `amp_transpiler.Session` does it, and `session_options.code(path)` is Python for others.
    """

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the program before and after the conversion side by side; see `Program.draw`.

        Args:
            path: the file to write: `.svg`, or `.dot` for graphviz's language.

        Raises:
            InputError: there is no converted program, since the source was copied.
            OptionError: the file has another ending.
            OutputError: it cannot be written.
        """
        if self.program is None:
            raise InputError("report.draw: nothing was converted; draw the source with amp.load(path).draw(...)")
        self.program.draw(path)

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Write the conversion as a recipe, which `transpile(recipe=path)` replays on the next export of the model.

        Args:
            path: the file to write, TOML.

        Raises:
            OutputError: it cannot be written.
        """
        from amp_transpiler.report import recipe  # here, since few conversions write one

        recipe.save_recipe(self, path)

    def _repr_html_(self) -> str:
        from amp_transpiler.report import as_html  # here, since only notebooks show a page

        return as_html.summary(self)
