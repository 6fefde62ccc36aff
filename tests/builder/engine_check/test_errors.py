# SPDX-License-Identifier: Apache-2.0
"""A check refuses what broken kernels do to some or all rows, and not what precisions lose."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from onnx import numpy_helper
from padfree.builder.engine_check.batches import CheckedBatch, make_batches
from padfree.builder.engine_check.errors import BOUNDS, Bound, OutputCheck, bound_of, check_output
from padfree.contract.metadata import Metadata, Profile, parse_metadata
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.precision import ranges
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.onnx_tools.rewrite import rewrite_model
from padfree.onnx_tools.synthetic import bert_model

Array = npt.NDArray[Any]

LENGTHS = (512, 1, 77)
TOKENS = {"name": "hidden", "layout": "packed", "dims": ["T", 96], "original_dims": ["B", "S", 96]}
VECTORS = {"name": "vector", "layout": "per_sequence", "dims": ["B", 1], "original_dims": ["B", 1]}
HALVES: dict[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
BATCH = CheckedBatch("mixed", {}, np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None])


def right() -> Array:
    """Rows with much in common, as trained models give them, and with columns of different sizes."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((sum(LENGTHS), 96)) + 0.7 * rng.standard_normal(96)
    return (rows * np.exp(rng.standard_normal(96))).astype(np.float32)


def check(actual: Array, bound: Bound, wanted: Array | None = None, entry: dict[str, Any] = TOKENS) -> OutputCheck:
    return check_output(entry, [BATCH], [right() if wanted is None else wanted], [actual], bound)


def zero_row(rows: Array) -> None:
    """A row that no block wrote."""
    rows[300] = 0


def other_row(rows: Array) -> None:
    """A row that belongs to another token."""
    rows[300] = rows[301]


def tile(rows: Array) -> None:
    """In a tile of rows, the last columns lack a part of the reduction."""
    rows[256:384, 64:] *= 0.5


def swapped_sequences(rows: Array) -> None:
    """All rows are off by one, as with offsets that are one too large."""
    rows[:] = np.roll(rows, 1, axis=0)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "fp8"])
@pytest.mark.parametrize("change", [zero_row, other_row, swapped_sequences])
def test_rows_that_are_not_right(change: Any, precision: str) -> None:
    actual = right().astype(HALVES.get(precision, np.float32)).astype(np.float32)
    assert check(actual, BOUNDS[precision]).problem == ""
    change(actual)
    assert "relative error" in check(actual, BOUNDS[precision]).problem


def test_a_part_of_a_tile() -> None:
    actual = right()
    tile(actual)
    for precision in ("fp16", "bf16", "fp32"):
        result = check(actual, BOUNDS[precision])
        assert result.problem
        assert result.batch == "mixed"


def test_numbers_that_are_not_finite() -> None:
    actual = right()
    actual[3, 3] = np.nan
    actual[5, 7] = np.inf
    for bound in BOUNDS.values():
        assert check(actual, bound).problem == "2 numbers that are infinite or not a number"


def test_a_single_number_near_zero_may_change_its_sign() -> None:
    """The cosine of one number is its sign, which says nothing if the number is much smaller than the others."""
    wanted = np.asarray([[1e-4], [1.0], [-0.8]], np.float32)
    actual = wanted + np.float32(-2e-4)
    assert check(actual, BOUNDS["fp16"], wanted, VECTORS).problem == ""
    assert check(-wanted, BOUNDS["bf16"], wanted, VECTORS).problem


def test_whole_numbers_may_differ_where_two_scores_are_equal() -> None:
    wanted = np.arange(100)[:, None]
    actual = wanted.copy()
    actual[:3] += 1
    entry = {"name": "best", "layout": "packed", "dims": ["T", 1], "original_dims": ["B", "S", 1]}
    assert check(actual, BOUNDS["fp16"], wanted, entry).problem == ""
    assert check(actual, BOUNDS["fp16"], wanted, entry).equal == 0.97
    actual[:] += 1
    assert "0% of its integers right" in check(actual, BOUNDS["bf16"], wanted, entry).problem


def metadata_of(precision: str, errors: dict[str, float] | None) -> Metadata:
    """Metadata of a model whose rounding was measured."""
    outputs = [{"name": "hidden", "layout": "packed", "dtype": "float32"}]
    inputs = [{"name": name, "role": role, "limit": None, "dtype": "int32"} for name, role in INPUTS.items()]
    raw = {"format": 1, "interface": "packed", "precision": precision, "inputs": inputs, "outputs": outputs}
    costs = {"errors": errors, "allowed": 0.2, "typical": {name: error / 4 for name, error in (errors or {}).items()}}
    measured = {} if errors is None else {"verification": {"half_precision": costs}}
    return parse_metadata({**raw, **measured}, "test")


PROFILE = Profile(1, 256, 512, 8, 128)
INPUTS = {"input_ids": "tokens", "seq_lens": "seq_lens"}


def test_what_is_allowed_follows_what_rounding_costs() -> None:
    """A model that loses little may be off by little; one that loses much is not refused for that."""
    allowed = {
        error: bound_of(metadata_of("bf16", {"hidden": error}), "hidden").relative for error in (0.01, 0.05, 0.2)
    }
    assert allowed == {0.01: 0.25, 0.05: 0.6, 0.2: 0.8}
    assert bound_of(metadata_of("fp16", {"hidden": 0.001}), "hidden").relative == BOUNDS["fp16"].relative
    assert bound_of(metadata_of("fp16", None), "hidden").relative == 0.15
    assert bound_of(metadata_of("fp32", None), "hidden") == BOUNDS["fp32"]
    typical = {error: bound_of(metadata_of("bf16", {"hidden": error}), "hidden").typical for error in (0.01, 0.08)}
    assert typical == {0.01: 0.016, 0.08: 0.06}
    assert bound_of(metadata_of("bf16", None), "hidden").typical is None


def rounded_answers(model: Model, precision: str, feeds: Any) -> Array:
    """The answers of onnxruntime with every tensor rounded, as an engine rounds."""
    return ranges.run(with_rounding(model, precision), feeds, ["last_hidden_state"])[0]


@cache
def six_layers(precision: str) -> Model:
    """A model of six layers, rewritten."""
    original = Model.of(bert_model(6, 64, 4, 256, vocab_size=200, max_positions=128))
    return rewrite_model(original, RewriteOptions(precision=precision, verify=precision != "fp32")).model


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("layer", [0, *(pytest.param(layer, marks=pytest.mark.slow) for layer in (3, 5))])
def test_one_gemm_of_one_layer_that_is_off_by_a_fifth(precision: str, layer: int) -> None:
    """The answers of GEMMs with folded norms, which round in other places, are still correct."""
    actual, exact = six_layers(precision), six_layers("fp32")
    metadata = parse_metadata(read_metadata(actual.proto, ValueError), "test")
    batch = next(item for item in make_batches(metadata, PROFILE, most_tokens=1000) if item.name == "mixed")
    feeds, entry = batch.inputs(metadata), metadata.raw["outputs"][0]
    wanted = ranges.run(exact.with_proto(with_functions(exact.proto)), feeds, [entry["name"]])[0]
    bound = bound_of(metadata, entry["name"])
    for right in (actual, with_linear(actual)):
        answers = rounded_answers(right, precision, feeds)
        assert check_output(entry, [batch], [wanted], [answers], bound).problem == ""
    wrong, name = actual.whole(), f"encoder.layer.{layer}.output.dense.MatMul"
    weight = next(item for item in wrong.graph.initializer if item.name == name)
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array((values.astype(np.float32) * 1.2).astype(values.dtype), name))
    answers = rounded_answers(Model(wrong), precision, feeds)
    problem = check_output(entry, [batch], [wanted], [answers], bound).problem
    assert problem if precision == "fp16" else "half of its rows" in problem
    loose = check_output(entry, [batch], [wanted], [answers], replace(bound, typical=None))
    assert precision == "fp16" or loose.problem == ""  # what bf16 may cost the worst row is more
