# SPDX-License-Identifier: Apache-2.0
"""The demonstration's work: rewrites a model and compares original (padded) with rewritten (packed)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from padfree.contract.metadata import Metadata
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.verification import measure
from padfree.runtime import Array, Session, padded_feeds, parse_metadata, split_outputs
from padfree.runtime.request import RaggedBatch, read_request
from padfree.runtime.tensorrt_timing import measure_ms
from padfree.runtime.texts import TextReader
from rich.progress import Progress

from ..engine.build import build_engine
from ..errors import BuildError
from ..peers.contender import rows_of, wall_ms
from ..peers.padded_engine import build_padded_engine, padded_metadata

Results = Mapping[str, list[Array]]

DEMO_DATA = Path(__file__).parent / "data"
MAX_TIMED_RUNS = 5
TIMING_BUDGET_S = 8.0  # enough for five runs of all but large batches on slow machines
GPU_TIMED_RUNS = 50
FP32_TOLERANCE = 1e-3  # sums of a few hundred fp32 terms in another order, against outputs of magnitude 1
FP16_TOLERANCE = 5e-2  # fp16 has 11 bits; twelve layers of it leave about 1e-2 on outputs of magnitude 1
ERROR_LOG_ONLY = 3


@dataclass(frozen=True)
class Comparison:
    """Original against rewritten on one batch; times are medians."""

    name: str
    engine: str
    sequences: int
    tokens: int
    padded_tokens: int
    largest_error: float
    padded_ms: float
    packed_ms: float

    @property
    def tokens_saved(self) -> float:
        """The part of the padded batch that was padding."""
        return 1 - self.tokens / self.padded_tokens

    @property
    def speedup(self) -> float:
        """Padded time over packed time."""
        return self.padded_ms / self.packed_ms


@dataclass(frozen=True)
class DemoModel:
    """An original, its rewritten file, and one batch for both."""

    name: str
    original: onnx.ModelProto
    original_metadata: Metadata
    metadata: Metadata
    packed_file: Path
    coverage: Mapping[str, Any]
    batch: RaggedBatch
    request: Mapping[str, list[Any]]


def prepare(name: str, original: onnx.ModelProto, texts: list[str], folder: Path) -> DemoModel:
    """Rewrites a model into `folder` and tokenises texts for it.

    Raises:
        RewriteError: the model cannot be rewritten.
    """
    # Not verified here: the comparison that follows does the same on real text.
    result = rewrite(original, interface="packed", precision="fp32", verify=False)
    packed_file = folder / f"{name}.packed.onnx"
    save_model(result.model, packed_file)
    with Session(packed_file) as session:
        metadata = session.metadata
    return DemoModel(
        name=name,
        original=original,
        original_metadata=parse_metadata(padded_metadata(original), name),
        metadata=metadata,
        packed_file=packed_file,
        coverage=result.report.to_dict(),
        **tokenize(texts, metadata),
    )


def with_texts(model: DemoModel, texts: list[str]) -> DemoModel:
    """The same model with another batch."""
    return replace(model, **tokenize(texts, model.metadata))


def tokenize(texts: list[str], metadata: Metadata) -> dict[str, Any]:
    """The `batch` and `request` of a DemoModel; texts longer than the model's positions are cut."""
    file = DEMO_DATA / "tokenizer.json"
    request = TextReader(file, metadata, file).read(texts).request
    return {"batch": read_request(request, metadata), "request": request}


def pick_evenly(texts: list[str], count: int) -> list[str]:
    """`count` of the texts, from the shortest to the longest in even steps."""
    by_length = sorted(texts, key=len)
    steps = max(1, count - 1)
    return [by_length[at * (len(by_length) - 1) // steps] for at in range(count)]


def compare_on_cpu(model: DemoModel) -> Comparison:
    """Runs original and rewritten model in onnxruntime.

    Raises:
        BuildError: they disagree.
    """
    options = ort.SessionOptions()
    options.log_severity_level = ERROR_LOG_ONLY
    session = ort.InferenceSession(model.original.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = padded_feeds(model.batch, model.original_metadata)
    names = [item.name for item in model.original_metadata.outputs]
    outputs, padded_ms = time_median(partial(session.run, names, feeds))
    expected = split_outputs(dict(zip(names, outputs, strict=True)), model.batch, model.original_metadata)
    del session
    with Session(model.packed_file) as packed:
        results, packed_ms = time_median(partial(packed.run, model.request))
    error = largest_error(expected, results)
    require_agreement(model.name, error, FP32_TOLERANCE)
    return comparison(model, "onnxruntime fp32", error, padded_ms, packed_ms)


def compare_on_gpu(model: DemoModel, folder: Path, progress: Progress | None) -> Comparison:
    """Builds the original as a padded engine and the rewritten one as a packed engine, fp16, and runs both.

    Raises:
        BuildError: a build failed, or the two disagree.
    """
    batch, longest = model.batch.seq_lens.size, int(model.batch.seq_lens.max())
    padded_plan, packed_plan = folder / f"{model.name}.padded.plan", folder / f"{model.name}.packed.plan"
    build_padded_engine(model.original, padded_plan, max_batch=batch, max_seq_len=longest, progress=progress)
    build_engine(
        model.original,
        packed_plan,
        precision="fp16",
        verify=False,
        max_batch=batch,
        max_seq_len=longest,
        opt_tokens=int(model.batch.seq_lens.sum()),
        progress=progress,
    )
    with Session(padded_plan) as padded:
        expected = padded.run(model.request)
        padded_ms = measure_ms(padded, model.batch, GPU_TIMED_RUNS)
    with Session(packed_plan) as packed:
        results = packed.run(model.request)
        packed_ms = measure_ms(packed, model.batch, GPU_TIMED_RUNS)
    error = largest_error(expected, results)
    require_agreement(model.name, error, FP16_TOLERANCE)
    return comparison(model, "TensorRT fp16", error, padded_ms, packed_ms)


def comparison(model: DemoModel, engine: str, error: float, padded_ms: float, packed_ms: float) -> Comparison:
    """The comparison, from a model's batch and the measured times."""
    lengths = model.batch.seq_lens
    padded = int(lengths.size * lengths.max())
    return Comparison(model.name, engine, lengths.size, int(lengths.sum()), padded, error, padded_ms, packed_ms)


def largest_error(expected: Results, results: Results) -> float:
    """The largest difference of any number of any output, in parts of its column's root mean square."""
    worst = 0.0
    for name, rows in expected.items():
        expected_rows, actual = rows_of(rows), rows_of(results[name])
        worst = max(worst, float(measure([expected_rows]).differences(expected_rows, actual).max(initial=0.0)))
    return worst


def require_agreement(name: str, error: float, tolerance: float) -> None:
    """Raises BuildError unless the error is a number within the tolerance."""
    if not error <= tolerance:
        raise BuildError(
            f"{name}: original and rewritten model differ by {error:.2e} of a column's size, allowed: "
            f"{tolerance:.0e}; this is a bug of padfree: please report it with the output of `padfree doctor`"
        )


def time_median(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `work` and its median time in ms, after one run that warms up."""
    result = work()
    times: list[float] = []
    while len(times) < MAX_TIMED_RUNS and sum(times) < 1000 * TIMING_BUDGET_S:
        times += wall_ms(work, 1)
    return result, statistics.median(times)
