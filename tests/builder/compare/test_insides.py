# SPDX-License-Identifier: Apache-2.0
"""Bisecting engines: the graph that is built with more outputs runs here in onnxruntime instead of as an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.builder.compare.batches import ComparedBatch, generate
from padfree.builder.compare.insides import EngineInside, with_outputs
from padfree.builder.compare.original import Original, describe_original
from padfree.builder.compare.reasons.bisecting import Departure, find_departure
from padfree.builder.compare.tolerances import TOLERANCES
from padfree.contract.names import ONNX_METADATA_KEY
from padfree.onnx_tools import load_model, save_model
from padfree.runtime import Metadata
from padfree.runtime.plan_files import parse_metadata

from tests.support.messages import with_linear

from . import planted_errors

CHUNK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("insides")
    planted_errors.write_original(folder / "original.onnx")
    return folder


def describe(folder: Path, model: ModelProto) -> tuple[Original, Metadata, ComparedBatch]:
    raw = json.loads(next(item.value for item in model.metadata_props if item.key == ONNX_METADATA_KEY))
    metadata = parse_metadata(raw, "the model")
    original = describe_original(folder / "original.onnx", [metadata], folder)
    return original, metadata, generate(original, max_batch=4, max_seq_len=24, kinds=(), seed=0)[2]


def departure(folder: Path, change: planted_errors.Change | None, *, passed: bool) -> tuple[Departure, list[Path]]:
    """What bisecting finds in the graph that a GPU with PadfreeLinear would build, and the files that were built."""
    path = planted_errors.write_rewritten(folder / "original.onnx", folder / "model.onnx", change)
    model = with_linear(load_model(path))
    built: list[Path] = []

    def build(marked: ModelProto) -> Path:
        built.append(folder / f"marked_{len(built)}.onnx")
        save_model(marked, built[-1])
        return built[-1]

    original, metadata, batch = describe(folder, model)
    inside = EngineInside(model, "fp32", build, device=0)
    inside.chunk = CHUNK
    return find_departure(original, inside, metadata, batch, TOLERANCES["fp32"], outcome_passed=passed), built


def test_every_tensor_that_claims_an_origin_agrees_with_it(folder: Path) -> None:
    actual, built = departure(folder, None, passed=False)
    assert actual.first is None, actual.verdict
    assert len(actual.trace) > 4 * planted_errors.LAYERS
    assert {"PadfreeLinear", "PadfreeAttention", "PadfreeLayerNorm"} <= {item.operator for item in actual.trace}
    assert len(built) == -(-len(actual.trace) // CHUNK)


def test_a_planted_error_is_found_in_the_engines_graph(folder: Path) -> None:
    actual, built = departure(folder, planted_errors.wrong_scale_in_last_layer, passed=False)
    assert actual.first is not None
    assert actual.first.operator == "PadfreeAttention"
    assert actual.first.node.startswith("PadfreeAttention_3")
    assert actual.kind == "wrong numbers"
    # Running a single sequence needs no further engines.
    assert len(built) == -(-len(actual.trace) // CHUNK)


def test_folded_norms_are_between_the_tensors_that_agree(tmp_path: Path) -> None:
    """64 wide, so that norms are folded: sums and moments have no origin; all other tensors agree with theirs."""
    planted_errors.write_original(tmp_path / "original.onnx", width=64)
    actual, _ = departure(tmp_path, None, passed=False)
    assert actual.first is None, actual.verdict
    operators = [item.operator for item in actual.trace]
    assert operators.count("PadfreeLayerNorm") == 2  # the norms of outputs
    assert operators.count("PadfreeLinear") == planted_errors.LAYERS  # the activations


def test_marked_outputs_have_types(folder: Path) -> None:
    path = planted_errors.write_rewritten(folder / "original.onnx", folder / "half.onnx", precision="fp16")
    model = load_model(path)
    inside = EngineInside(model, "fp16", lambda _: path, device=0)
    norms = [node.output[0] for node in planted_errors.nodes_of(model, "PadfreeLayerNorm")]
    assert set(norms) < set(inside.tensors)
    halves = [name for name in norms if name not in {value.name for value in model.graph.output}]
    marked = with_outputs(model, dict.fromkeys(halves[:2], TensorProto.FLOAT16))
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in halves[:2]]
    assert list(marked.graph.output) == [*model.graph.output, *wanted]
    _, metadata, _ = describe(folder, marked)
    assert [(item.name, item.dtype) for item in metadata.outputs[-2:]] == [(name, "float16") for name in halves[:2]]
