# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark's records as tables: plain text at its end, and as in docs/internals/attention-figures.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import EARLIER, in_earlier_run

from .cases import CUDNN, FA2, Target, all_cases
from .position_cases import PLAIN, position_cases

HEADINGS = ("case", "ours us", "TFLOP/s", FA2, CUDNN, "best peer", "ratio", "error", "targets")
BYTES_PER_US = 4.3e6
"""Bandwidth of an H200's memory; a case cannot take less than its bytes at this rate."""
PAGE_PEERS = {
    FA2: FA2,
    CUDNN: "cuDNN, equal",
    "flashinfer": "flashinfer",
    "flash-attn-4": "flash-attn-4",
    "TensorRT varseqlen plugin": "varseqlen plugin",
}
"""Peers with a column on the page, and their headings."""
POSITION_PEERS = {
    PLAIN: "without positions",
    FA2: FA2,
    "flex_attention": "flex_attention",
    "flashdeberta, padded": "flashdeberta, padded",
    "flashdeberta, varlen": "flashdeberta, varlen",
}
"""The same for the table of cases with positions."""
PAGE_HEADINGS = ("us per call", "floor", "padfree", *PAGE_PEERS.values(), "goal")
POSITION_HEADINGS = ("us per call", "floor", "padfree", *POSITION_PEERS.values(), "goal")
PROFILE_HEADINGS = (
    "one launch, caches empty",
    "us",
    "k clocks: all, busiest, mean",
    "least k clocks: bytes, GEMMs, exponentials",
    "tensor cores, XU, issue slots",
    "warps of 64",
    "memory, MB: read, written",
    "L2, MB: read, written",
    "needed, MB: read, written",
    "warps wait for",
)
SHOWN_STALLS = 4


def microseconds(value: float | None) -> str:
    """A time in us, or a dash."""
    return "-" if value is None else f"{value:.1f}"


def best_peer(record: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and time in us of the fastest peer that was right; padfree without positions does not count."""
    peers = {name: time for name, time in record["peers_us"].items() if name != PLAIN}
    if not peers:
        return None
    name = min(peers, key=lambda peer: peers[peer])
    return name, peers[name]


def verdict(target: Mapping[str, Any]) -> str:
    """One target in words."""
    state = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
    return f"{target['text']}{' (stretch)' if target['stretch'] else ''}: {state}"


def cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the table; ratio is the best peer's time over ours."""
    best, ours_us, peers = best_peer(record), record["ours_us"], record["peers_us"]
    return (
        record["case"],
        microseconds(ours_us),
        microseconds(record["tflops"]),
        microseconds(peers.get(FA2)),
        microseconds(peers.get(CUDNN)),
        f"{best[0]} {best[1]:.1f}" if best else "-",
        f"{best[1] / ours_us:.2f}" if best and ours_us else "-",
        f"{record['max_error']:.1e}" if record["max_error"] is not None else record["unavailable"].get("ours", "-"),
        "; ".join(verdict(target) for target in record["targets"]),
    )


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """All records, one line each, under their headings."""
    lines = [HEADINGS, *(cells(record) for record in records)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def goal(record: Mapping[str, Any]) -> str:
    """The time in us that the case's first target asks for, and whether it was met.

    It is in brackets if it depends on a peer that was measured in an earlier run.
    """
    target, now = _first_targets().get(record["case"]), record["peers_us"]
    if target is None or record["ours_us"] is None:
        return ""
    bound_us = target.bound_us({**record.get(EARLIER, {}), **now})
    if bound_us is None:
        return ""
    words = f"{bound_us:.1f} {'met' if record['ours_us'] <= bound_us else 'missed'}"
    return words if target.bound_us(now) == bound_us else in_earlier_run(words)


@functools.cache
def _first_targets() -> Mapping[str, Target]:
    """The first target of every case that has one, by the case's name."""
    return {case.name: case.targets[0] for case in (*all_cases(), *position_cases()) if case.targets}


def page_cells(record: Mapping[str, Any]) -> list[str]:
    """One row of the page: the floor, ours and the peers in us, the fastest of all peers or ours in bold.

    Peers that were only measured in an earlier run are in brackets.
    """
    return _cells(record, PAGE_PEERS)


def position_cells(record: Mapping[str, Any]) -> list[str]:
    """One row of the page's table of cases with positions."""
    return _cells(record, POSITION_PEERS)


def _cells(record: Mapping[str, Any], shown: Mapping[str, str]) -> list[str]:
    now, earlier, ours_us = record["peers_us"], record.get(EARLIER, {}), record["ours_us"]
    peers = {**earlier, **now}
    rivals = [time for name, time in peers.items() if name != PLAIN]
    fastest = min((time for time in (ours_us, *rivals) if time is not None), default=None)
    times = []
    for name, time in ("", ours_us), *((peer, peers.get(peer)) for peer in shown):
        text = "" if time is None else f"**{time:.1f}**" if time == fastest else f"{time:.1f}"
        times.append(in_earlier_run(text) if name in earlier and name not in now else text)
    return [record["case"], f"{record['bytes_moved'] / BYTES_PER_US:.1f}", *times, goal(record)]


def thousands(*values: float) -> str:
    """Counts in thousands, or bytes in kB, with one digit."""
    return ", ".join(f"{value / 1e3:.1f}" for value in values)


def profile_cells(record: Mapping[str, Any]) -> list[str]:
    """One row of the table of profiles; the last cell has the most frequent reasons why a warp did not issue."""
    clocks_per_us = record["sm_clocks"] / record["time_us"]
    least_bytes = record["bytes_moved"] / BYTES_PER_US * clocks_per_us
    waits = sorted(((share, name) for name, share in record["stalls"].items() if name != "selected"), reverse=True)
    needed = record["bytes_moved"] / 4  # bytes of each of Q, K, V and the output
    return [
        record["case"],
        microseconds(record["time_us"]),
        thousands(record["sm_clocks"], record["sm_clocks_busiest"], record["sm_clocks_busy"]),
        thousands(least_bytes, record["least_tensor_clocks"], record["least_exp_clocks"]),
        f"{record['tensor_pct']:.0f}, {record['xu_pct']:.0f}, {record['issue_pct']:.0f} %",
        f"{record['warps']:.1f}",
        thousands(record["dram_read_bytes"] / 1e3, record["dram_write_bytes"] / 1e3),
        thousands(record["l2_read_bytes"] / 1e3, record["l2_write_bytes"] / 1e3),
        thousands(3 * needed / 1e3, needed / 1e3),
        ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for share, name in waits[:SHOWN_STALLS]),
    ]
