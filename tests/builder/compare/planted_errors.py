# SPDX-License-Identifier: Apache-2.0
"""A BERT of four small layers, its rewritten model, and errors planted in the latter."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.synthetic import bert_model

LAYERS = 4
MIDDLE_OUTPUT = "middle"  # the third layer's result: an output of the same shape as the last one's

Change = Callable[[ModelProto], None]


def write_original(path: Path, change: Change | None = None, *, width: int = 32) -> Path:
    """Writes an exported model with three outputs, two of which have a row per token."""
    model = bert_model(LAYERS, width, 4, 2 * width, vocab_size=60, max_positions=48)
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    model.graph.node.append(helper.make_node("Identity", [norms[6].output[0]], [MIDDLE_OUTPUT], name="middle"))
    axes = ("batch", "sequence", width)
    model.graph.output.append(helper.make_tensor_value_info(MIDDLE_OUTPUT, TensorProto.FLOAT, axes))
    if change is not None:
        change(model)
    save_model(model, path)
    return path


@cache
def _rewrite(original: Path, **options: str) -> ModelProto:
    return rewrite(original, verify=False, **options).model


def write_rewritten(original: Path, path: Path, change: Change | None = None, **options: str) -> Path:
    """Writes the rewritten original, with a change."""
    model = ModelProto()
    model.CopyFrom(_rewrite(original, **options))
    if change is not None:
        change(model)
        precision = options.get("precision", "fp32")
        model = with_functions(model, precision)
    save_model(model, path)
    return path


def nodes_of(model: ModelProto, op_type: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == op_type]


def set_attribute(node: NodeProto, name: str, value: float) -> None:
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def weight_of_layer_3(model: ModelProto) -> None:
    """One row of an output product's weight is a little off."""
    name = "encoder.layer.3.output.dense.MatMul"
    tensor = next(item for item in model.graph.initializer if item.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values[5, ::2] += 0.2  # a change of the whole row would shift all numbers alike, which the norm undoes
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def swap_outputs(model: ModelProto, other: str = MIDDLE_OUTPUT) -> None:
    """The last layer's result has the name of another output, and the other way round."""
    renamed = {"last_hidden_state": other, other: "last_hidden_state"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = renamed.get(name, name)


def shift_positions(model: ModelProto) -> None:
    """Positions count from 1."""
    set_attribute(nodes_of(model, "PadfreeEmbedding")[0], "position_offset", 1)


def shift_rows(model: ModelProto) -> None:
    """Every token has the next one's row."""
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            if name == "last_hidden_state":
                node.output[position] = "hidden"
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name == "last_hidden_state":
                node.input[position] = "hidden"
    for name, value in (("zero", [0]), ("one", [1]), ("end", [2**31])):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
    model.graph.node.extend(
        [
            helper.make_node("Slice", ["hidden", "one", "end"], ["rest"], name="rest"),
            helper.make_node("Slice", ["hidden", "zero", "one"], ["head"], name="head"),
            helper.make_node("Concat", ["rest", "head"], ["last_hidden_state"], name="rolled", axis=0),
        ]
    )


def drop_token_types(model: ModelProto) -> None:
    """All token types are 0."""
    embedding = nodes_of(model, "PadfreeEmbedding")[0]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.int32), "nothing"))
    zeros = helper.make_node("Mul", [embedding.input[1], "nothing"], ["no_types"], name="no_types")
    nodes = list(model.graph.node)
    at = nodes.index(embedding)
    embedding.input[1] = "no_types"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], zeros, *nodes[at:]])


def drop_mask_packed(model: ModelProto) -> None:
    """Attention in layer 2 takes all sequences for a single one."""
    first = nodes_of(model, "PadfreeSchedule")[0]
    whole = helper.make_node("ReduceSum", [first.input[0]], ["all_tokens"], name="all_tokens", keepdims=1)
    schedule = NodeProto()
    schedule.CopyFrom(first)
    schedule.name, schedule.input[0] = "one_sequence", "all_tokens"
    attention = nodes_of(model, "PadfreeAttention")[2]
    for position, name in enumerate(first.output):
        schedule.output[position] = f"one_sequence_{position}"
        for at, inputs in enumerate(attention.input):
            if inputs == name:
                attention.input[at] = schedule.output[position]
    nodes = list(model.graph.node)
    at = nodes.index(attention)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], whole, schedule, *nodes[at:]])


def drop_mask_padded(model: ModelProto) -> None:
    """Every slot is kept, whatever the mask says."""
    index = nodes_of(model, "PadfreeIndex")[0]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.int32), "nothing"))
    zeros = helper.make_node("Mul", [index.input[0], "nothing"], ["zeros"], name="zeros")
    equal = helper.make_node("Equal", ["zeros", "nothing"], ["kept_bool"], name="kept_bool")
    ones = helper.make_node("Cast", ["kept_bool"], ["every_slot"], name="every_slot", to=TensorProto.INT32)
    nodes = list(model.graph.node)
    at = nodes.index(index)
    index.input[0] = "every_slot"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], zeros, equal, ones, *nodes[at:]])


def wrong_scale_in_last_layer(model: ModelProto) -> None:
    """The last layer's scale of scores is 1.5 times as large."""
    node = nodes_of(model, "PadfreeAttention")[-1]
    scale = next(item.f for item in node.attribute if item.name == "scale")
    set_attribute(node, "scale", 1.5 * scale)


def large_numbers_in_layer_3(model: ModelProto) -> None:
    """Activations inside layer 3 are beyond fp16, and its output product makes them small again; for originals."""
    for name, factor in (("intermediate.dense", 3e4), ("output.dense", 1 / 3e4)):
        weight = next(item for item in model.graph.initializer if item.name == f"encoder.layer.3.{name}.MatMul")
        values = numpy_helper.to_array(weight) * np.float32(factor)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
