# SPDX-License-Identifier: Apache-2.0
"""Puts a head into an exported encoder's graph: from rows of tokens to one vector per text, or logits to scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import LATE, OUTPUTS, PAIRS, SENTENCES
from padfree.onnx_tools.importing import infer, keep_needed, skeleton_of

from ..errors import BuildError
from .head import Head, Normalize, Splade, Step, Truncate, VectorNorm
from .nodes import HeadBuilder

VECTORS, SCORES = OUTPUTS[SENTENCES], OUTPUTS[PAIRS]
_MASK = "attention_mask"
_ROWS = ("last_hidden_state", "token_embeddings", "hidden_states", "hidden_state")
_LOGITS = ("logits", "prediction_logits", "scores")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_EPSILON, _NORM_EPSILON = 1e-9, 1e-12  # as sentence-transformers and torch have them
_LOWEST = float(np.finfo(np.float32).min)


def add_head(model: ModelProto, head: Head, outputs: Sequence[str] = (), *, mask: str | None = None) -> None:
    """Appends a head to an encoder, and keeps the outputs that were asked for.

    Args:
        model: gives rows of tokens [B,S,E] (heads that pool), or logits [B,N] (scores) or [B,S,V] (splade).
        head: what to append.
        outputs: names of what the result gives; empty: what the head makes, or all that the model has.
        mask: the input that is 1 at tokens and 0 at padding (default: attention_mask).

    Raises:
        BuildError: the model has no such output or mask.
    """
    pooled = None if head.is_empty else _pooled_output(model, head, mask or _MASK)
    graph = model.graph
    outputs_by_name = {item.name: item for item in graph.output}
    if pooled is not None:
        outputs_by_name[pooled.name] = pooled
    wanted_names = list(outputs) or ([pooled.name] if pooled is not None else list(outputs_by_name))
    for name in wanted_names:
        if name not in outputs_by_name and (inner := _inner(model, name)) is not None:
            outputs_by_name[name] = inner
        if name not in outputs_by_name:
            raise BuildError(f"--outputs {name}: the model has {', '.join(outputs_by_name)}; choose one of these")
    remaining_outputs = [outputs_by_name[name] for name in wanted_names]
    del graph.output[:]
    graph.output.extend(remaining_outputs)
    if outputs:
        keep_needed(model)


def _inner(model: ModelProto, name: str) -> ValueInfoProto | None:
    """A tensor inside the model as an output; None where there is none of that name, or its type is not known."""
    if not any(name in node.output for node in model.graph.node):
        return None
    value_type = infer(skeleton_of(model)).get(name)
    if value_type is None or not value_type.elem_type:
        return None
    value = ValueInfoProto(name=name)
    value.type.tensor_type.CopyFrom(value_type)
    return value


def _pooled_output(model: ModelProto, head: Head, mask: str) -> ValueInfoProto:
    """The output of the head; its nodes are appended unless the model has that output already."""
    name = SCORES if head.scores else OUTPUTS[LATE] if head.of_tokens else VECTORS
    output: ValueInfoProto | None = next((item for item in model.graph.output if item.name == VECTORS), None)
    if output is not None and name == VECTORS:
        return _cut(model, output, head)  # it was exported with the whole chain
    nodes = HeadBuilder(model)
    if head.scores and not head.pooling:
        logits = _output(model, _LOGITS, 2)
        row = nodes.activation(head.scores, nodes.to_float(logits.name))
        return _describe(nodes, row, name, _width(logits))
    if head.splade is not None:
        logits = _output(model, _LOGITS, 3)
        row = _splade(nodes, head.splade, nodes.to_float(logits.name), _weights(model, nodes, mask))
        return _describe(nodes, row, name, _width(logits))
    rows = _output(model, _ROWS, 3)
    if head.of_tokens:
        return _of_tokens(nodes, head, rows)
    x, weights = nodes.to_float(rows.name), _weights(model, nodes, mask)
    if not head.pools_prompt:
        weights = _without_prompts(model, nodes, x, weights, mask)
    parts = [_pool(nodes, mode, x, weights) for mode in head.pooling]
    vector = parts[0] if len(parts) == 1 else nodes.op("Concat", *parts, axis=-1)
    width = _width(rows)
    size = width * len(parts) if isinstance(width, int) else "width"
    for step in head.steps:
        vector, size = _add_step(nodes, step, vector, size)
    if head.scores:
        vector = nodes.activation(head.scores, vector)
    return _describe(nodes, vector, name, size)


def _of_tokens(nodes: HeadBuilder, head: Head, rows: ValueInfoProto) -> ValueInfoProto:
    """The vectors of tokens, [B,S,N] of their rows [B,S,E]."""
    x, size = nodes.to_float(rows.name), _width(rows)
    for step in head.steps:
        x, size = _add_step(nodes, step, x, size)
    name = OUTPUTS[LATE]
    nodes.op("Identity", x, output=name)
    first, second = (dim.dim_param or dim.dim_value for dim in rows.type.tensor_type.shape.dim[:2])
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, second, size])


def _cut(model: ModelProto, output: ValueInfoProto, head: Head) -> ValueInfoProto:
    """The vectors of an exported chain, truncated as sentence-transformers does after the last module."""
    if not head.steps or not isinstance(head.steps[-1], Truncate):
        return output
    whole = f"whole_{VECTORS}"
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = whole if name == VECTORS else name
    nodes = HeadBuilder(model)
    vector, size = _add_step(nodes, head.steps[-1], whole, _width(output))
    return _describe(nodes, vector, VECTORS, size)


def _output(model: ModelProto, names: Sequence[str], rank: int) -> ValueInfoProto:
    """The output with one of these names, or the first floating-point output of this rank."""
    outputs = list(model.graph.output)
    named_outputs: list[ValueInfoProto] = [item for name in names for item in outputs if item.name == name]
    fitting: list[ValueInfoProto] = [
        item
        for item in outputs
        if len(item.type.tensor_type.shape.dim) == rank and item.type.tensor_type.elem_type in _FLOATS
    ]
    if not named_outputs and not fitting:
        kinds = {2: "scores [B,N]", 3: "rows of tokens [B,S,E]"}
        raise BuildError(
            f"the model's outputs are {', '.join(item.name for item in outputs)}, and none has {kinds[rank]}, which "
            f"the head needs; export it with {names[0]}, or pass --pooling none"
        )
    return (named_outputs or fitting)[0]


def _width(output: ValueInfoProto) -> int | str:
    dims = output.type.tensor_type.shape.dim
    return (dims[-1].dim_value or "width") if dims else "width"


def _describe(nodes: HeadBuilder, tensor: str, name: str, width: int | str) -> ValueInfoProto:
    nodes.op("Identity", tensor, output=name)
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])


def _weights(model: ModelProto, nodes: HeadBuilder, mask: str) -> str:
    """The mask as float32 numbers [B,S,1]. Raises BuildError if the model has no such input."""
    names = [item.name for item in model.graph.input]
    if mask not in names:
        raise BuildError(
            f"pooling needs the mask of padding, and the model has the inputs {', '.join(names)}; pass --mask NAME for "
            "the one that is 1 at tokens, or export it with attention_mask"
        )
    return nodes.unsqueeze(nodes.to_float(mask), -1 if nodes.opset >= 11 else 2)


def _without_prompts(model: ModelProto, nodes: HeadBuilder, x: str, weights: str, mask: str) -> str:
    """Weights [B,S,1] that are 0 at the first tokens of a text, as many as the input PROMPT_LENGTH [B] says."""
    grid = next(item for item in model.graph.input if item.name == mask)
    batch = grid.type.tensor_type.shape.dim[0]
    model.graph.input.append(helper.make_tensor_value_info(PROMPT_LENGTH, TensorProto.INT64, ["batch"]))
    model.graph.input[-1].type.tensor_type.shape.dim[0].CopyFrom(batch)
    lengths = nodes.unsqueeze(nodes.to_float(PROMPT_LENGTH), 1)
    positions = nodes.to_float(nodes.unsqueeze(_positions(nodes, x), 0))
    is_text = nodes.to_float(nodes.op("Greater", positions, lengths))
    return nodes.op("Mul", weights, nodes.unsqueeze(is_text, 2))


def _pool(nodes: HeadBuilder, mode: str, x: str, weights: str) -> str:
    """Rows [B,S,E] and weights [B,S,1] to [B,E], as sentence-transformers' Pooling."""
    if mode == "cls":
        return _first(nodes, x, weights)
    if mode == "lasttoken":
        return _last(nodes, x, weights)
    if mode == "max":
        is_token = nodes.op("Greater", weights, 0.0)
        return nodes.along("ReduceMax", nodes.op("Where", is_token, x, _LOWEST), 1, keepdims=0)
    if mode == "weightedmean":
        weights = nodes.op("Mul", weights, nodes.to_float(nodes.unsqueeze(_positions(nodes, x), 0, 2)))
    total = nodes.along("ReduceSum", nodes.op("Mul", x, weights), 1, keepdims=0)
    count = nodes.at_least(nodes.along("ReduceSum", weights, 1, keepdims=0), _EPSILON)
    return nodes.op("Div", total, nodes.op("Sqrt", count) if mode == "mean_sqrt_len_tokens" else count)


def _first(nodes: HeadBuilder, x: str, weights: str) -> str:
    """The first kept token of every text, wherever padding is."""
    return _row_at(nodes, x, nodes.op("ArgMax", nodes.along("Squeeze", weights, 2), axis=1, keepdims=1))


def _last(nodes: HeadBuilder, x: str, weights: str) -> str:
    """The last kept token of every text, wherever padding is: the largest position among the kept ones."""
    is_token = nodes.along("Squeeze", nodes.op("Cast", weights, to=TensorProto.INT64), 2)
    indices = nodes.to_float(nodes.op("Mul", is_token, _positions(nodes, x)))
    return _row_at(nodes, x, nodes.op("ArgMax", indices, axis=1, keepdims=1))


def _row_at(nodes: HeadBuilder, x: str, slots: str) -> str:
    """The rows of x [B,S,E] at slots [B,1], as [B,E]."""
    shape = nodes.op("Shape", nodes.op("Slice", x, [0], [1], [1]))
    wide = nodes.op("Expand", nodes.unsqueeze(slots, 2), shape)
    return nodes.along("Squeeze", nodes.op("GatherElements", x, wide, axis=1), 1)


def _positions(nodes: HeadBuilder, x: str) -> str:
    """1 to S for x [B,S,E]."""
    size = nodes.along("Squeeze", nodes.op("Slice", nodes.op("Shape", x), [1], [2]), 0)
    return nodes.op("Range", 1, nodes.op("Add", size, 1), 1)


def _splade(nodes: HeadBuilder, splade: Splade, logits: str, weights: str) -> str:
    value = nodes.log1p(nodes.op("Relu", logits))
    if splade.twice:
        value = nodes.log1p(value)
    if splade.strategy == "sum":
        return nodes.along("ReduceSum", nodes.op("Mul", value, weights), 1, keepdims=0)
    return _pool(nodes, "max", value, weights)


def _add_step(nodes: HeadBuilder, step: Step, x: str, size: int | str) -> tuple[str, int | str]:
    """Applies a step to vectors [B,E] or [B,S,E]; returns the result and its width."""
    if isinstance(step, Normalize):
        norm = nodes.at_least(nodes.along("ReduceL2", x, -1, keepdims=1), _NORM_EPSILON)
        return nodes.op("Div", x, norm), size
    if isinstance(step, VectorNorm):
        return _norm(nodes, step, x), size
    if isinstance(step, Truncate):
        truncated = nodes.op("Slice", x, [0], [step.size], [-1])
        return truncated, min(size, step.size) if isinstance(size, int) else size
    _check_width(step.weight.shape[1], size, "Dense")
    outputs = nodes.op("MatMul", x, nodes.constant(step.weight.T))
    if step.bias is not None:
        outputs = nodes.op("Add", outputs, nodes.constant(step.bias))
    outputs = nodes.activation(step.activation, outputs)
    if step.adds:
        old = x if step.residual is None else nodes.op("MatMul", x, nodes.constant(step.residual.T))
        outputs = nodes.op("Add", outputs, old)
    return outputs, step.weight.shape[0]


def _norm(nodes: HeadBuilder, step: VectorNorm, x: str) -> str:
    centred = nodes.op("Sub", x, nodes.along("ReduceMean", x, -1, keepdims=1))
    variance = nodes.along("ReduceMean", nodes.op("Mul", centred, centred), -1, keepdims=1)
    deviation = nodes.op("Sqrt", nodes.op("Add", variance, nodes.constant(step.epsilon)))
    scaled = nodes.op("Mul", nodes.op("Div", centred, deviation), nodes.constant(step.weight))
    return nodes.op("Add", scaled, nodes.constant(step.bias))


def _check_width(needed_width: int, size: int | str, what: str) -> None:
    if isinstance(size, int) and size != needed_width:
        raise BuildError(
            f"the module {what} takes vectors of {needed_width}, the model's have {size}: they belong to different "
            "models, or --pooling is another one than the folder's; correct it"
        )
