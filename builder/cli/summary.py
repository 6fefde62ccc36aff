# SPDX-License-Identifier: Apache-2.0
"""What `optimize`, `build` and `inspect` end with: at most eight lines that a person needs; --verbose has the rest."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from padfree.contract.names import is_onnx
from padfree.contract.texts import CLASSES, PAIRS, TOKENS

from .console import count_text, print_line

_MOST_REASON_LETTERS = 160
_SAMPLE, _OTHER_SAMPLE = "how warm is it today", "20 degrees in the shade"
MB = 1e6
_MORE = "(all: --verbose)"

Line = tuple[str, str]
"""What a line is about, and what it says."""


def add_verbose_option(parser: argparse.ArgumentParser, what: str) -> None:
    """--verbose; `what` says what it shows."""
    parser.add_argument("-v", "--verbose", action="store_true", help=f"also show {what}")


def print_summary(lines: Sequence[Line]) -> None:
    """Prints lines, what they are about in a column of its own."""
    for name, text in lines:
        print_line(f"{name + ':':9}{text}")


def rewriting_lines(
    metadata: Mapping[str, Any], coverage: Mapping[str, Any] | None, *, with_errors: bool = True
) -> list[Line]:
    """What was packed, what a batch must keep, which types it has, and with `with_errors` the errors: at most 4 lines.

    What callers have to know of inputs and outputs comes first, with what batches must keep where there is both.
    """
    notes, conditions = list((coverage or {}).get("notes", ())), list(_conditions(coverage or {}))
    if notes and conditions:
        notes, conditions = [*notes, f"requires {' and '.join(conditions)}"], []
    lines = [("note", "; ".join(notes))] if notes else []
    lines += [("packed", packed_text(coverage))] if coverage else []
    for name, items in (("requires", conditions), ("types", list(_types(metadata)))):
        if items:
            lines.append((name, "; ".join(items)))
    return [*lines, ("errors", errors(metadata))] if with_errors else lines


def saving_lines(coverage: Mapping[str, Any] | None) -> list[Line]:
    """What packing leaves out of the GEMMs, for batches of some lengths; no line where the report cannot tell."""
    costs = (coverage or {}).get("costs")
    if not costs or costs["flop_ratio"] is None:
        return []
    lengths = costs["lengths"]
    batch_text = f"{lengths['batch']} sequences of up to {lengths['max']} tokens (mean {lengths['mean']:.3g})"
    return [("saves", f"{costs['flop_ratio']:.2f} x fewer FLOPs for {batch_text}")]


def packed_text(coverage: Mapping[str, Any]) -> str:
    """How much computes no padding, and the first reason why not all does."""
    from .coverage import EVERY_SLOT, shares

    if coverage["complete"]:
        return (
            "everything; no padding is computed" if not coverage.get("every_slot_counts") else f"nothing: {EVERY_SLOT}"
        )
    count = len(coverage["islands"])
    text = f"{shares(coverage)}; {count} node{'s' * (count != 1)} stay{'s' * (count == 1)} padded"
    reasons = _reasons(coverage)
    if not reasons:
        return text
    more = f" ({count_text(len(reasons) - 1, 'more reason')}: --verbose)" if len(reasons) > 1 else ""
    return f"{text}: {_cut(reasons[0])}{more}"


def _reasons(coverage: Mapping[str, Any]) -> list[str]:
    """Why nodes stay padded, each reason once: those of nodes that do, or else what passes nearly replaced."""
    from padfree.builder.coverage import near_misses

    from .coverage import miss_text

    padded = {item["node"] for item in coverage["islands"]}
    misses = near_misses(coverage)
    own = [miss_text(item) for item in misses if item.node in padded]
    return own or [miss_text(item) for item in misses]


def _cut(reason: str) -> str:
    return textwrap.shorten(reason, _MOST_REASON_LETTERS, placeholder=" ...")


def _conditions(coverage: Mapping[str, Any]) -> Iterator[str]:
    """What batches have to be like."""
    if coverage.get("right_padded_only"):
        yield "right-padded masks"
    elif coverage.get("left_padded_because"):
        yield "left-padded masks"
    elif coverage.get("contiguous_because"):
        yield "masks without padding between tokens"
    for name, ids in coverage.get("excluded_ids", {}).items():
        yield f"no {', '.join(map(str, ids[:3]))}{', ...' * (len(ids) > 3)} in '{name}' inside a sequence"


def _types(metadata: Mapping[str, Any]) -> Iterator[str]:
    """What is not computed in the type that was asked for, or that the file had."""
    if "unquantized" in metadata:
        yield f"the file was quantised ({', '.join(metadata['unquantized']['types'])}), {_since(metadata)}"
    if "bf16_because" in metadata:
        yield f"bf16, as fp16 does not fit: {_cut(metadata['bf16_because'])}"
    in_float32 = metadata.get("kept_float32") or {}
    if in_float32:
        name, reason = next(iter(in_float32.items()))
        more = f" {_MORE}" if len(in_float32) > 1 else ""
        yield f"{count_text(len(in_float32), 'tensor')} in float32: '{name}' {_cut(reason)}{more}"
    if "quantization" in metadata:
        yield _quantization_text(metadata["quantization"])


def _since(metadata: Mapping[str, Any]) -> str:
    """What became of a file's scales."""
    if "quantization" not in metadata:
        return "the result is not"
    return "its scales are kept" if "kept_scales" in metadata["quantization"] else "with other scales"


def _quantization_text(quantization: Mapping[str, Any]) -> str:
    layers, unquantized = quantization["layers"], quantization.get("kept") or {}
    cosines = [item["mean_cosine"] for item in (quantization.get("outputs") or {}).values()]
    cosine = f", cosine {min(cosines):.5f} to half precision" if cosines else ""
    return f"{len(layers)} of {len(layers) + len(unquantized)} GEMMs in {quantization['type']}{cosine} {_MORE}"


def errors(metadata: Mapping[str, Any]) -> str:
    """What was measured in onnxruntime: the largest error of any output, in parts of a column's root mean square."""
    verification = metadata.get("verification")
    if not verification:
        return "not measured: the original was not compared"
    half = verification.get("half_precision")
    rounding = f", {metadata['precision']} {_worst(half)}" if half else ""
    return f"rewriting {_worst(verification)}{rounding}"


def _worst(errors: Mapping[str, Any]) -> str:
    worst = max(errors["errors"].values(), default=0.0)
    return f"{f'{worst:.1e}' if worst else '0'} (allowed {errors['allowed']:.0e})"


def target_of(engine: Mapping[str, Any]) -> str:
    """Where an engine runs."""
    return f"{engine['gpu_name']}, TensorRT {engine['tensorrt']}"


def most_of(engine: Mapping[str, Any]) -> str:
    """What an engine takes in one run."""
    profile = engine["profile"]
    return f"{profile['max_batch']} sequences of up to {profile['max_seq_len']} tokens, {profile['max_tokens']} in all"


def wrote(paths: Sequence[Path], note: str = "") -> Line:
    """The files that were written, and what they hold."""
    *others, last = [_with_size(path) for path in paths]
    return "wrote", (f"{', '.join(others)} and {last}" if others else last) + note


def _with_size(path: Path) -> str:
    size = path.stat().st_size if path.is_file() else 0
    return f"{path} ({size / MB:.3g} MB)" if size >= MB else str(path)


def run_command(model: Path, metadata: Mapping[str, Any]) -> Line | None:
    """The command that runs a model on a text; None for one that keeps no tokenizer, or that no CPU runs."""
    text = metadata.get("text") or {}
    if not text.get("tokenizer_sha256") or needs_engine(model, metadata):
        return None
    command = ["padfree", "run", str(model), "--text", _SAMPLE]
    if text["task"] == PAIRS:
        command += ["--text-pair", _OTHER_SAMPLE]
    names = {item["name"] for item in metadata["outputs"]}
    has_labels = text["task"] in (PAIRS, CLASSES, TOKENS) and not names.isdisjoint(("scores", "logits"))
    return next_command(*command, "-o", str(model.with_name("out.jsonl" if has_labels else "out.npz")))


def needs_engine(model: Path, metadata: Mapping[str, Any]) -> bool:
    """Whether a model has to be built first: onnxruntime has no kernels for files in bf16 on a CPU."""
    return is_onnx(model) and metadata["precision"] == "bf16"


def next_command(*words: str) -> Line:
    """A command to copy."""
    return "next", shlex.join(words)


def repeated_options(arguments: argparse.Namespace) -> list[str]:
    """The options that say what the original is, for a next command that reads it, too."""
    options = [
        word
        for name in ("pooling", "outputs", "adapter", "mask", "revision")
        if getattr(arguments, name)
        for word in (f"--{name}", getattr(arguments, name))
    ]
    options += [word for text in arguments.fix for word in ("--fix", text)]
    if arguments.normalize is not None:
        options.append("--normalize" if arguments.normalize else "--no-normalize")
    return options
