# SPDX-License-Identifier: Apache-2.0
"""Long sequences run through layers that differ in more than their weights; a wrong layer is found wherever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from padfree.onnx_tools import RewriteError, VerificationError, rewrite
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.canonical import runnable
from padfree.onnx_tools.operators import with_functions, without_functions
from padfree.onnx_tools.synthetic import bert_model
from padfree.onnx_tools.verification.repeated_layers import ShortenedModels, without_repeated_layers
from padfree.onnx_tools.verification.verify import verify_ids

LAYERS = 12
LEFT_OUT = 7  # a layer that is like the others
WIDE = 64  # more than the tokens of a ragged batch, and fewer than those of the longest sequence


@pytest.fixture(scope="module")
def original() -> ModelProto:
    return bert_model(LAYERS, 32, 4, 64, vocab_size=60, max_positions=160)


@pytest.fixture(scope="module")
def rewritten(original: ModelProto) -> ModelProto:
    return without_functions(rewrite(original, verify=False).model)


def metadata_of(model: ModelProto) -> dict[str, Any]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def shorten(original: ModelProto, rewritten: ModelProto) -> ShortenedModels | None:
    models = Model(runnable(original)), Model(with_functions(rewritten))
    return without_repeated_layers(*models, metadata_of(rewritten)["origins"])


def change_copy(model: ModelProto, change: Callable[[ModelProto], object]) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    change(result)
    return result


def attention(model: ModelProto, layer: int) -> Any:
    return [node for node in model.graph.node if node.op_type == "PadfreeAttention"][layer]


def set_window(model: ModelProto, layer: int) -> None:
    for item in attention(model, layer).attribute:
        if item.name == "window_left":
            item.i = WIDE


def scale_weight(model: ModelProto, layer: int) -> None:
    name = f"encoder.layer.{layer}.output.dense.MatMul"
    tensor = next(item for item in model.graph.initializer if item.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.1), name))


def test_layers_that_repeat_others_are_left_out_of_both(original: ModelProto, rewritten: ModelProto) -> None:
    actual = shorten(original, rewritten)
    assert actual is not None
    for model, kind in ((actual.original, "Softmax"), (actual.rewritten, "PadfreeAttention")):
        assert 1 <= sum(node.op_type == kind for node in model.proto.graph.node) <= 4
    assert actual.of == len(rewritten.graph.node) > 3 * actual.nodes
    assert [item.name for item in actual.original.proto.graph.output] == [item.name for item in original.graph.output]


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_what_is_verified_says_what_long_sequences_went_through(original: ModelProto, interface: str) -> None:
    verification = metadata_of(rewrite(original, interface=interface).model)["verification"]
    counts = verification["long_sequences"]
    assert 3 * counts["nodes"] < counts["of"]
    whole = metadata_of(rewrite(original, interface=interface, verify="whole").model)["verification"]
    assert "long_sequences" not in whole
    assert whole["errors"].keys() == verification["errors"].keys()


def test_few_layers_are_compared_whole() -> None:
    model = bert_model(2, 32, 4, 64, vocab_size=60, max_positions=48)
    assert "long_sequences" not in metadata_of(rewrite(model).model)["verification"]


def test_a_wrong_weight_of_a_layer_that_is_left_out_is_found(original: ModelProto, rewritten: ModelProto) -> None:
    wrong = change_copy(rewritten, lambda model: scale_weight(model, LEFT_OUT))
    actual = shorten(original, wrong)
    assert actual is not None
    assert f"encoder.layer.{LEFT_OUT}.output.dense.MatMul" not in {
        item.name for item in actual.rewritten.proto.graph.initializer
    }
    verify_ids(Model(original), Model(with_functions(rewritten)), metadata_of(rewritten))
    with pytest.raises(VerificationError, match="the original gives"):
        verify_ids(Model(original), Model(with_functions(wrong)), metadata_of(rewritten))


@pytest.mark.parametrize("layer", [1, LEFT_OUT, LAYERS - 1])
def test_a_layer_with_an_attribute_of_its_own_stays(original: ModelProto, rewritten: ModelProto, layer: int) -> None:
    """A window wider than short sequences shows only in the longest one."""
    wrong = change_copy(rewritten, lambda model: set_window(model, layer))
    actual = shorten(original, wrong)
    kept = [] if actual is None else [node for node in actual.rewritten.proto.graph.node if node.domain]
    windows = {item.i for node in kept for item in node.attribute if item.name == "window_left"}
    assert actual is None or windows == {-1, WIDE}
    with pytest.raises(VerificationError, match="batch 'longest'"):
        verify_ids(Model(original), Model(with_functions(wrong)), metadata_of(rewritten))


def test_single_numbers_and_tables_are_no_weights(original: ModelProto) -> None:
    """An original in which one layer divides scores by another number, and one in which a layer has a score table."""

    def own_number(model: ModelProto) -> None:
        node = [node for node in model.graph.node if node.op_type == "Div"][LEFT_OUT]
        tensor = numpy_helper.from_array(np.asarray(1.5, np.float32), "own_number")
        model.graph.initializer.append(tensor)
        node.input[1] = tensor.name

    def layers_of(model: ModelProto) -> list[str]:
        result = without_functions(rewrite(model, verify=False).model)
        actual = shorten(model, result)
        assert actual is not None
        return [name for node in actual.original.proto.graph.node for name in node.input]

    assert "own_number" in layers_of(change_copy(original, own_number))


def test_unknown_kinds_of_verification_are_refused(original: ModelProto) -> None:
    with pytest.raises(RewriteError, match="verify is 'full', allowed are True, False and 'whole'"):
        rewrite(original, verify="full")
