# SPDX-License-Identifier: Apache-2.0
"""Trains the model, and scores it padded in PyTorch and packed in every precision."""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from padfree.builder import build_engine
from padfree.builder.calibration import Calibration, quantized_model
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.builder.peers.padded_engine import build_padded_engine
from padfree.contract.names import EIGHT_BITS
from padfree.onnx_tools import RewriteOptions, load_model, rewrite, save_model
from padfree.onnx_tools.files.model import Model as OnnxModel
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.onnx_tools.rewrite import finish
from padfree.runtime import Session

from benchmarks.command import keep

from . import list_operations, retrieval
from .model import MAX_LENGTH, OUTPUTS, Model, export, grid
from .outliers import with_outliers
from .scores import FoundScores, HeldOut, differences, score
from .training import LEARNING_RATE, train

SCORE_BATCH = 256
ALLOWED_POINTS = 0.1
ALLOWED_POINTS_QUANTIZED: Mapping[str, float] = MappingProxyType({"fp8": 0.7, "int8": 1.0})
TUNING_RATE = 1e-4
SAMPLES = 256  # lists, and as many documents, to which outliers are fitted
COMPARED = 16  # sequences whose tensors are compared one by one
HALVES = ("fp16", "bf16")
PRECISIONS = (*HALVES, *EIGHT_BITS)
CALIBRATED = 512  # as many lists and documents of the training data, for scales of 8 bits
VARIANTS = ("plain", "outliers")
ARITHMETIC = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp16", "int8": "fp16"}
"""The type to which values are rounded between products."""
REFERENCE = "padded PyTorch fp32"
RECORDED = ("layers", "hidden", "steps", "tuning_steps", "examples", "test")  # the options that are recorded

Data = tuple[list[list_operations.Example], list[retrieval.Pair]]
Outputs = dict[str, list[np.ndarray]]  # each output's arrays, one per sequence
Infer = Callable[[Sequence[np.ndarray]], Outputs]


def run(infer: Infer, test: HeldOut) -> FoundScores:
    """Runs the whole test set, batch by batch."""
    lists = _in_batches(infer, [item.ids for item in test.lists])
    queries = _in_batches(infer, [item.query for item in test.pairs])
    documents = _in_batches(infer, [item.document for item in test.pairs])
    return FoundScores(
        np.stack(lists["answer"]), np.concatenate(lists["depths"]),
        np.stack(queries["embedding"]), np.stack(documents["embedding"]),
    )  # fmt: skip


def _in_batches(infer: Infer, rows: Sequence[np.ndarray]) -> Outputs:
    results: Outputs = {name: [] for name in OUTPUTS}
    for start in range(0, len(rows), SCORE_BATCH):
        for name, arrays in infer(rows[start : start + SCORE_BATCH]).items():
            results[name] += arrays
    return results


def in_torch(model: Model, device: str) -> Infer:
    """Padded PyTorch in fp32."""

    def infer(rows: Sequence[np.ndarray]) -> Outputs:
        ids, mask = (item.to(device) for item in grid(rows))
        with torch.inference_mode():
            answers, depths, embeddings = (item.cpu().numpy() for item in model(ids, mask))
        tags = [item[: len(row)] for item, row in zip(depths, rows, strict=True)]
        return {"answer": list(answers), "depths": tags, "embedding": list(embeddings)}

    return infer


def write_packed(exported: Path, folder: Path, precisions: Sequence[str]) -> dict[str, Path]:
    """The rewritten files in fp16 and bf16, as far as they are wanted, by precision."""
    files = {precision: folder / f"packed_{precision}.onnx" for precision in HALVES if precision in precisions}
    for precision, path in files.items():
        save_model(rewrite(exported, precision=precision).model, path)
    return files


def write_quantized(exported: Path, folder: Path, data: Data, precision: str) -> Path:
    """The file in fp8 or int8, with scales from examples of the training."""
    rows = [*(item.ids for item in data[0][:CALIBRATED]), *(item.document for item in data[1][:CALIBRATED])]
    tokens, path = folder / "calibration.npz", folder / f"packed_{precision}.onnx"
    np.savez(tokens, input_ids=np.concatenate(rows), seq_lens=np.asarray([len(row) for row in rows]))
    result = quantized_model(
        OnnxModel.of(load_model(exported)),
        exported,
        Calibration(tokens, options=QuantizationOptions(number_format=FORMATS[precision])),
        RewriteOptions(strict=True),
        begin=lambda _: lambda: None,
    )
    save_model(finish(result, "fp16"), path)
    return path


def contenders(
    exported: Path, packed: Mapping[str, Path], folder: Path, without_tensorrt: bool
) -> Iterator[tuple[str, Path]]:
    """The models that are scored besides PyTorch, name and file: the padded engine beside one in half precision."""
    if not without_tensorrt and any(precision in packed for precision in HALVES):
        path = folder / "padded.plan"
        build_padded_engine(exported, path, max_batch=SCORE_BATCH, max_seq_len=MAX_LENGTH)
        yield "padded TensorRT fp16", path
    for precision, file in packed.items():
        if without_tensorrt:
            path = folder / f"rounded_{precision}.onnx"
            save_model(with_rounding(OnnxModel(load_model(file)), ARITHMETIC[precision]).proto, path)
        else:
            path = file.with_suffix(".plan")
            build_engine(file, path, max_batch=SCORE_BATCH, max_seq_len=MAX_LENGTH)
        yield f"packed {precision}", path


def errors_inside(
    exported: Path, packed: Mapping[str, Path], ids: Sequence[np.ndarray], without_tensorrt: bool
) -> dict[str, Any]:
    """The relative error of every tensor inside the models in half precision on some sequences, by precision."""
    data = exported.with_name("tokens.npz")
    np.savez(data, input_ids=np.concatenate(ids), seq_lens=np.asarray([len(row) for row in ids]))
    runner = "onnxrt-packed" if without_tensorrt else "trt"
    options = CompareOptions(runners=(runner,), data=DataOptions(data), bisect=True)
    report = compare(exported, list(packed.values()), options)
    results = {}
    for precision, item in zip(packed, report.runners, strict=True):
        assert item.bisection is not None
        trace = item.bisection.trace
        results[precision] = {
            "outputs": {output.output: asdict(output.total) for output in item.outputs},
            "tensors": [(each.origin, each.operator, each.errors.relative) for each in trace],
            "peak": max(max(abs(each.wanted.low), abs(each.wanted.high)) for each in trace),
        }
    return results


def trained_model(arguments: argparse.Namespace, data: Data, device: str) -> Model:
    """The model from the file of weights, if that exists; else a trained one, saved in that file if it is named."""
    torch.manual_seed(0)
    model = Model(arguments.layers, arguments.hidden)
    path: Path | None = arguments.weights
    if path is not None and path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        model.to(device).eval()
        return model
    model.to(device)
    fit(model, data, arguments.steps, LEARNING_RATE, arguments, device)
    if path is not None:
        torch.save(model.state_dict(), path)
    return model


def outlier_model(model: Model, arguments: argparse.Namespace, data: Data, device: str) -> Model:
    """The trained model with outliers, trained further for a few steps."""
    rows = [*(item.ids for item in data[0][:SAMPLES]), *(item.document for item in data[1][:SAMPLES])]
    result = with_outliers(model, *(item.to(device) for item in grid(rows)))
    fit(result, data, arguments.tuning_steps, TUNING_RATE, arguments, device)
    return result


def fit(model: Model, data: Data, steps: int, rate: float, arguments: argparse.Namespace, device: str) -> None:
    """Trains, and reports how long it took."""
    start = time.perf_counter()
    train(model, *data, steps, device, seed=0, graph=device == "cuda" and not arguments.eager, rate=rate)
    print(f"{steps} steps in {time.perf_counter() - start:.1f} s", flush=True)


def make_data(lists: int, pairs: int, seed: int) -> Data:
    """Seeded examples. Other processes make the lists, so this has to be called before CUDA is used."""
    examples = list_operations.examples(lists, MAX_LENGTH, seed=seed, workers=len(os.sched_getaffinity(0)))
    return examples, retrieval.pairs(pairs, MAX_LENGTH, seed=seed)


def run_variant(
    variant: str, model: Model, data: Data, test: HeldOut, arguments: argparse.Namespace, device: str
) -> bool:
    """Scores one variant; returns whether all agree with PyTorch. Scales come from `data`, the training data."""
    reference = run(in_torch(model, device), test)
    scores = {REFERENCE: score(test, reference, reference)}
    show(variant, REFERENCE, scores)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        exported = folder / "exported.onnx"
        export(copy.deepcopy(model), str(exported))
        packed = write_packed(exported, folder, arguments.precisions)
        eight_bits = [precision for precision in EIGHT_BITS if precision in arguments.precisions]
        quantized = {precision: write_quantized(exported, folder, data, precision) for precision in eight_bits}
        files = packed | quantized
        for name, path in contenders(exported, files, folder, arguments.without_tensorrt):
            with Session(path, cuda_graphs=False) as session:  # there are hundreds of sizes, each used once
                scores[name] = score(test, run(lambda rows: session.run(list(rows)), test), reference)
            show(variant, name, scores)
        ids = [item.ids for item in test.lists[:COMPARED]]
        inside = errors_inside(exported, packed, ids, arguments.without_tensorrt) if packed else {}
    for precision, errors in inside.items():
        print(f"{variant:9} largest number inside, {precision}: {errors['peak']:.4g}", flush=True)
    base = scores[REFERENCE]
    agree = all(agrees(name, differences(item, base)) for name, item in scores.items())
    record = {
        "case": f"trained, {variant}",
        "variant": variant,
        "largest_norm_parameter": model.largest_norm_parameter(),
        **{key: getattr(arguments, key) for key in RECORDED},
        "scores": scores,
        "inside": inside,
        "passed": agree,
    }
    keep(arguments.json, record)
    return agree


def agrees(name: str, off: Mapping[str, float]) -> bool:
    """Whether a model's scores are as close to PyTorch's as its precision requires."""
    allowed = ALLOWED_POINTS_QUANTIZED.get(name.removeprefix("packed "), ALLOWED_POINTS)
    return max(abs(points) for points in off.values()) <= allowed


def show(variant: str, name: str, scores: dict[str, Any]) -> None:
    """One line per model."""
    item = scores[name]
    figures = "".join(f"{task} {value:7.3f} %  " for task, value in item["percent"].items())
    pairs = differences(item, scores[REFERENCE]).items()
    off = ", ".join(f"{value:+.3f} +- {item['margin'][task]:.3f}" for task, value in pairs)
    changed = max(item["changed_percent"].values())
    print(f"{variant:9} {name:22} {figures}off by {off}, changed {changed:.3f} %", flush=True)
