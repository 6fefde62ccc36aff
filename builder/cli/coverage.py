# SPDX-License-Identifier: Apache-2.0
"""Prints coverage reports: what was packed, what that saves, what was not packed, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .console import print_line, print_table

if TYPE_CHECKING:
    from padfree.builder.coverage import NearMiss

PART_NAMES = {"linear": "linear layers", "attention": "attention", "head": "heads", "all": "all"}
LAYOUTS = {
    "packed": "one row per token [T, ...]",
    "per_sequence": "one row per sequence [B, ...]",
    "padded": "one row per slot [B, ..., S, ...]",
    "constant": "the same for every batch",
}
COMPLETE = "complete: nothing computes padding"
EVERY_SLOT = "every slot counts as a token, padding among them, for no input tells what is padding"
KEPT_SHOWN = 12  # tensors that stay float32
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_coverage(report: Mapping[str, Any]) -> None:
    """Prints a coverage report: costs where it has them, the passes, every near miss, and the verdict at the end."""
    from padfree.builder.coverage import near_misses

    costs = report.get("costs")
    for note in report.get("notes", []):
        print_line(f"note: {note}")
    if costs:
        _print_costs(costs, report["products"]["uncounted"])
    rows = [(item["name"], str(item["replaced"]), str(len(item["missed"]))) for item in report["passes"]]
    print_table("passes", ("pass", "replaced", "missed"), rows)
    misses = [(item.where or "-", miss_text(item)) for item in near_misses(report)]
    if misses:
        print_table("near misses", ("pass", "reason"), misses)
    for reason in right_padded_reasons(report):
        print_line(f"masks must be right-padded: {reason}")
    for reason in report.get("left_padded_because", []):
        print_line(f"masks must be left-padded: {reason}")
    for reason in report.get("contiguous_because", []):
        print_line(f"masks must be contiguous: {reason}")
    for name, ids in report.get("excluded_ids", {}).items():
        ids_text = ", ".join(str(value) for value in ids[:3]) + (", ..." if len(ids) > 3 else "")
        print_line(f"'{name}' must not hold {ids_text} inside a sequence: the model takes it for padding")
    if costs and costs["flop_ratio"] is not None:
        _print_speed_up(costs)
    print_line(verdict(report))


def miss_text(item: NearMiss) -> str:
    """The reason with the node, and how many nodes missed for the same one."""
    node = "" if item.node in item.reason else f" (at {item.node})"
    more = f"; {item.count - 1} more like it" if item.count > 1 else ""
    return f"{item.reason}{node}{more}"


def right_padded_reasons(report: Mapping[str, Any]) -> list[str]:
    """Why masks must be right-padded; files of versions that recorded no reason get a general one."""
    if not report.get("right_padded_only"):
        return []
    unknown = "attention takes lengths instead of a mask, or what stays padded reads masked slots"
    return list(report.get("right_padded_because", [unknown]))


def verdict(report: Mapping[str, Any]) -> str:
    """One sentence: how much of the model computes no padding."""
    if report["complete"]:
        return COMPLETE if not report.get("every_slot_counts") else f"complete: {EVERY_SLOT}"
    count = len(report["islands"])
    padded = [name for name, layout in report["outputs"].items() if layout == "padded"]
    if padded and "PadfreeIndex" not in report["plugins"]:  # the padded interface's outputs are padded anyway
        outputs = f", output{'s' * (len(padded) != 1)} {', '.join(repr(name) for name in padded)} among them"
    else:
        outputs = ""
    return f"incomplete: {count} node{'s' * (count != 1)} stay{'s' * (count == 1)} padded{outputs}; {shares(report)}"


def shares(report: Mapping[str, Any]) -> str:
    """How much of the GEMMs is packed, by the count that the table shows, too."""
    from padfree.onnx_tools import percent

    linear, whole = report["packed_gemm_share"], None
    if report.get("costs"):
        linear, whole = (report["costs"]["parts"][part]["packed_share"] for part in ("linear", "all"))
    shares = [
        f"{percent(share)} of {what}"
        for share, what in ((linear, "the linear layers' work"), (whole, "all FLOPs"))
        if share is not None
    ]
    if not shares:
        return "no GEMM is counted"
    return f"{' and '.join(shares)} {'are' if len(shares) > 1 else 'is'} packed"


def print_outputs(outputs: list[Mapping[str, Any]]) -> None:
    """Prints the layout of every output."""
    rows = [(item["name"], item["layout"], _holds(item), item["dtype"]) for item in outputs]
    print_table("outputs", ("output", "layout", "holds", "type"), rows)


def _holds(output: Mapping[str, Any]) -> str:
    if output["layout"] == "padded" and output.get("dims"):
        return f"[{', '.join(str(size) for size in output['dims'])}]"
    return LAYOUTS[output["layout"]]


def print_kept_float32(metadata: Mapping[str, Any]) -> None:
    """Prints why a model is bf16 that might have been fp16, or which tensors of an fp16 model stay float32 and why.

    And what was taken out of a quantised file.
    """
    if "unquantized" in metadata:
        unquantized = metadata["unquantized"]
        activations = unquantized["activations"]
        advice = (
            "; --precision fp8 or int8 with --calibrate puts GEMMs into 8 bits, and int8 with --keep-scales as before"
        )
        print_line(
            f"the file was quantised ({', '.join(unquantized['types'])}): {unquantized['weights']} weights are the "
            "numbers that its own stand for"
            f"{f', and its {activations} roundings of activations were taken out' * bool(activations)}"
            f"{advice * ('quantization' not in metadata)}",
        )
    if "bf16_because" in metadata:
        print_line(f"bf16, as fp16 does not fit: {metadata['bf16_because']}")
    in_float32 = list(metadata.get("kept_float32", {}).items())
    if not in_float32:
        return
    print_table("float32, with the nodes that make and read it", ("tensor", "reason"), in_float32[:KEPT_SHOWN])
    if len(in_float32) > KEPT_SHOWN:
        print_line(f"and {len(in_float32) - KEPT_SHOWN} more tensors (`kept_float32` in the metadata)")


def _print_costs(costs: Mapping[str, Any], uncounted: list[str]) -> None:
    from padfree.onnx_tools import percent

    lengths = costs["lengths"]
    print_line(
        f"for {lengths['batch']} sequences of {lengths['mean']:g} tokens on average and at most {lengths['max']} "
        f"({lengths['tokens']:.0f} tokens, {lengths['slots']} slots with padding):",
    )
    rows = [
        (
            PART_NAMES[name],
            "-" if part["packed_share"] is None else percent(part["packed_share"]),
            si(part["original_flops"]),
            si(part["rewritten_flops"]),
            si(part["padded_flops"]),
        )
        for name, part in costs["parts"].items()
        if part["original_flops"] or part["rewritten_flops"]
    ]
    columns = ("part", "packed share", "original FLOPs", "rewritten FLOPs", "of these padded")
    print_table("GEMMs", columns, rows)
    if uncounted:
        more = f" and {len(uncounted) - 1} more" if len(uncounted) > 1 else ""
        print_line(f"not counted, for their sizes are not known: {uncounted[0]}{more}")


def _print_speed_up(costs: Mapping[str, Any]) -> None:
    roofline = costs["roofline"]
    times = " to ".join(microseconds(roofline[name]) for name in ("original_us", "rewritten_us"))
    print_line(
        f"expected of the GEMMs alone: {costs['flop_ratio']:.2f} x fewer FLOPs; {roofline['ratio']:.2f} x "
        f"faster by the roofline of one {roofline['gpu'].upper()} in fp16 ({times} at {roofline['tflops']:g} TFLOP/s, "
        f"{roofline['gb_s']:g} GB/s); `padfree bench` measures the whole",
    )


def si(value: float) -> str:
    """A number with three digits and a prefix: 1.23 G."""
    for factor, prefix in PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g}"


def microseconds(value: float) -> str:
    """A time with three digits: 1.23 ms."""
    return f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} us"
