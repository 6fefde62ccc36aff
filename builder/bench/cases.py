# SPDX-License-Identifier: Apache-2.0
"""One case of a benchmark, from what the user asked for to the record that is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.onnx_tools.cost import figures

from ..engine.profile import ProfileOptions
from ..errors import BuildError
from ..lengths import LengthOptions, choose_lengths
from ..peers.batch import draw_batch, draw_lengths, read_lengths
from ..peers.catalog import CPU_PEERS, GPU_PEERS
from ..peers.setup import PeerModel, Setup
from .environment import environment
from .measure import Measurement, measure_cpu, measure_gpu

DEFAULT_BATCH = 16
OPTIONS = LengthOptions(longest="--seq-len", mean="--mean")


@dataclass(frozen=True)
class BenchCase:
    """A model and a batch; None lets padfree choose: 16 sequences, the model's longest, 0.6 of it on average.

    lengths: a file of lengths instead of a drawn batch. mask: the padding mask's input, where that is not proved.
    """

    model: Path
    batch: int | None = None
    seq_len: int | None = None
    mean: float | None = None
    lengths: Path | None = None
    precision: str = "fp16"
    torch_folder: Path | None = None
    seed: int = 0
    name: str | None = None
    mask: str | None = None


def measure(
    case: BenchCase,
    peers: list[str] | None,
    *,
    on_cpu: bool,
    folder: Path,
    timing_cache: str | Path | None,
    device: int = 0,
    say: Callable[[str], None] = lambda _: None,
    model: PeerModel | None = None,
    profile: ProfileOptions | None = None,
) -> tuple[dict[str, Any], Measurement]:
    """Measures a case; returns the JSON record and what it was made from.

    Args:
        case: what to measure.
        peers: names out of GPU_PEERS or CPU_PEERS; None for all.
        on_cpu: in onnxruntime on the CPU.
        folder: for engines while they are measured.
        timing_cache: as for build_engine.
        device: CUDA device number.
        say: gets what is being done.
        model: the case's model where it has been read already.
        profile: of one packed engine for several cases, which stays in the folder; None tunes one for this case.

    Raises:
        BuildError: unknown peers, lengths that contradict the model, an engine that cannot be built, wrong answers.
    """
    contenders = CPU_PEERS if on_cpu else GPU_PEERS
    for name in peers or ():
        if name not in contenders:
            where = "the CPU" if on_cpu else "a GPU"
            raise BuildError(f"--peers {name}: unknown on {where}, allowed: {', '.join(contenders)}; correct the list")
    model = model or PeerModel(case.model, case.precision, case.torch_folder, case.mask)
    seq_lens, seq_len = _lengths_of(case, model.metadata.max_positions)
    batch = draw_batch(model.metadata, seq_lens, seq_len, case.seed)
    setup = Setup(model, batch, folder, timing_cache, device, say, profile)
    start = time.monotonic()
    results = (measure_cpu if on_cpu else measure_gpu)(setup, list(contenders) if peers is None else peers)
    record = {
        "case": case.name or f"{case.model.stem}, {len(seq_lens)} x {seq_len}, mean {batch.tokens / len(seq_lens):.4g}",
        "batch": len(seq_lens),
        "seq_len": seq_len,
        "tokens": batch.tokens,
        "slots": batch.slots,
        "precision": case.precision,
        "device": "cpu" if on_cpu else "gpu",
        "packed_flops_share": figures([], model.gemms, setup.lengths).packed_share,
        **results.to_dict(),
        "seconds": round(time.monotonic() - start, 1),
        **environment(),
    }
    return record, results


def _lengths_of(case: BenchCase, limit: int | None) -> tuple[list[int], int]:
    """The length of every sequence, and the length to which padded peers pad. Raises BuildError."""
    if case.lengths is None:
        batch = DEFAULT_BATCH if case.batch is None else case.batch
        lengths = choose_lengths(limit, batch, case.mean, case.seq_len, OPTIONS)
        return draw_lengths(lengths, case.seed), lengths.maximum
    seq_lens = read_lengths(case.lengths)[: case.batch]
    seq_len = choose_lengths(limit, len(seq_lens), None, case.seq_len or max(seq_lens), OPTIONS).maximum
    if max(seq_lens) > seq_len:
        raise BuildError(
            f"{case.lengths}: longest is {max(seq_lens)}, --seq-len {seq_len}; pass --seq-len {max(seq_lens)}"
        )
    return seq_lens, seq_len
