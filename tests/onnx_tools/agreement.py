# SPDX-License-Identifier: Apache-2.0
"""Runs an original and its rewritten model in onnxruntime and compares them on every kept token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteResult

from tests.support.exports import inline_functions

INTERFACES = ("packed", "padded")
LENGTHS, LENGTH = (9, 1, 4, 6), 9
_TOLERANCE = 2e-5  # float32, one or two layers, sums of at most a few dozen terms in a different order
Form = TypeVar("Form")


def with_interfaces_in_turn(forms: Iterable[Form]) -> list[tuple[Form, str]]:
    """Pairs each form with one of the interfaces: for what is found in the graph before the interfaces differ."""
    return list(zip(forms, itertools.cycle(INTERFACES)))


def masks(interface: str) -> dict[str, np.ndarray]:
    slots, lengths = np.arange(LENGTH), np.asarray(LENGTHS)[:, None]
    results = {"prefix": slots < lengths}
    if interface == "padded":
        holes = np.random.default_rng(3).random((len(LENGTHS), LENGTH)) < 0.5
        holes[:, 0] = True
        results |= {"left": slots >= LENGTH - lengths, "holes": holes, "full": np.ones_like(holes)}
    return results


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs, computed exactly as the file says: nothing is fused."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        inline_functions(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def feeds_for(original: ModelProto, mask: np.ndarray, limit: int) -> dict[str, np.ndarray]:
    """Random ids everywhere, including masked slots."""
    rng = np.random.default_rng(7)
    feeds = {}
    for value in original.graph.input:
        high = 2 if "type" in value.name else limit
        feeds[value.name] = rng.integers(0, high, mask.shape)
    feeds["attention_mask"] = mask
    types = {value.name: value.type.tensor_type.elem_type for value in original.graph.input}
    return {name: value.astype(helper.tensor_dtype_to_np_dtype(types[name])) for name, value in feeds.items()}


Run = Callable[[ModelProto, dict[str, np.ndarray]], list[np.ndarray]]


def assert_agree(
    original: ModelProto,
    result: RewriteResult,
    *,
    limit: int = 20,
    only: str | None = None,
    run: Run = run,
    tolerance: float = _TOLERANCE,
    equal_nan: bool = False,
) -> None:
    """Every output is the same for every kept token; outputs per sequence, wherever the mask keeps the first slot.

    One batch holds sequences with all kinds of masks.
    """
    metadata = json.loads(next(item.value for item in result.model.metadata_props if item.key == "padfree"))
    wanted_masks = {name: mask for name, mask in masks(metadata["interface"]).items() if only in (None, name)}
    mask = np.concatenate(list(wanted_masks.values()))
    kinds = np.repeat(list(wanted_masks), len(LENGTHS))
    feeds = feeds_for(original, mask, limit)
    wanted = run(original, feeds)
    inputs = feeds
    if metadata["interface"] == "packed":
        tokens = [item["name"] for item in metadata["inputs"] if item["role"] == "tokens"]
        inputs = {name: feeds[name][mask].astype(np.int32) for name in tokens}
        inputs["seq_lens"] = mask.sum(1).astype(np.int32)
        if any(item["role"] == "max_seqlen" for item in metadata["inputs"]):
            inputs["max_seqlen"] = np.zeros(LENGTH, np.int32)
    actual = run(result.model, inputs)
    for output, a, b in zip(metadata["outputs"], wanted, actual, strict=True):
        rows = np.broadcast_to(kinds[:, None], mask.shape)[mask]
        if output["layout"] == "packed":
            a = a[mask]
        elif output["layout"] == "per_sequence":
            a, b, rows = a[mask[:, 0]], b[mask[:, 0]], kinds[mask[:, 0]]
        elif a.shape[:2] == mask.shape:
            a, b = a[mask], b[mask]
        assert a.shape == b.shape, output
        same = np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=equal_nan)
        different = ~same.reshape(len(a) if a.ndim else 1, -1).all(1)
        where = sorted(set(rows[different])) if len(rows) == len(different) else []
        assert same.all(), f"{output}, masks {where}: differs by up to {np.abs(a - b).max():.2g}"


def reads_padding(original: ModelProto, interface: str, *, run: Run, tolerance: float) -> bool:
    """Whether the original's results for kept tokens change with the ids in masked slots."""
    mask = np.concatenate(list(masks(interface).values()))
    feeds = feeds_for(original, mask, 20)
    results = []
    for seed in (1, 2):
        other = np.random.default_rng(seed).integers(0, 20, mask.shape)
        ids = np.where(mask, feeds["input_ids"], other).astype(feeds["input_ids"].dtype)
        results.append(run(original, {**feeds, "input_ids": ids}))
    return _kept_differ(*results, mask, tolerance)


def _kept_differ(one: list[np.ndarray], other: list[np.ndarray], mask: np.ndarray, tolerance: float) -> bool:
    """Whether any outputs of two runs differ for kept tokens, or for sequences whose first slot is kept."""
    for a, b in zip(one, other, strict=True):
        kept = mask if a.shape[:2] == mask.shape else mask[:, 0] if len(a) == len(mask) else slice(None)
        if not np.allclose(a[kept], b[kept], rtol=tolerance, atol=tolerance, equal_nan=True):
            return True
    return False


def in_float64(run: Run) -> Run:
    """Runs models with every float32 as float64: two ways to write the same sums agree there to many more digits."""

    def run_in_float64(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
        return run(_in_float64(model), wide)

    return run_in_float64


def _in_float64(model: ModelProto) -> ModelProto:
    copy = ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in copy.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return copy
