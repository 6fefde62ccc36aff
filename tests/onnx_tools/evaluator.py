# SPDX-License-Identifier: Apache-2.0
"""Runs small models without onnxruntime, whose sessions take longer to create than to run.

Standard operators are those of onnx.reference; padfree's are the reference that the kernels are tested against
(tests/support/reference.py), not the function bodies that the rewriter puts into its results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun, RuntimeContextError
from padfree.contract.names import DOMAIN
from padfree.onnx_tools import without_functions

from tests.support import reference as ref

Array = np.ndarray
Inputs = Iterator[Array]
Attributes = Mapping[str, Any]


def _next_input(inputs: Inputs, attributes: Attributes, name: str) -> Array | None:
    """The next input if the attribute says that it is there."""
    return next(inputs) if attributes[name] else None


def _pack(inputs: Inputs, _: Attributes) -> tuple[Array, ...]:
    return (ref.pack(next(inputs), next(inputs)),)


def _unpack(inputs: Inputs, _: Attributes) -> tuple[Array, ...]:
    return (ref.unpack(next(inputs), next(inputs), next(inputs), next(inputs)),)


def _index(inputs: Inputs, _: Attributes) -> tuple[Array, ...]:
    return ref.index(next(inputs))


def _schedule(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    seq_lens, tokens = next(inputs), next(inputs)
    extent = _next_input(inputs, attributes, "has_extent")
    cu_seqlens, slots = ref.schedule(seq_lens, len(tokens), None if extent is None else extent.shape[-1])
    results = (cu_seqlens,) if slots is None else (cu_seqlens, slots)
    if attributes["has_positions"]:
        results = (*results, ref.positions(cu_seqlens, len(tokens)))
    return (*results, np.zeros((1, 4), np.int32)) if attributes["has_tasks"] else results


def _embedding(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    ids = next(inputs)
    types, positions = (_next_input(inputs, attributes, name) for name in ("has_token_types", "has_positions"))
    cu_seqlens, words = next(inputs), next(inputs)
    rows, kinds = (_next_input(inputs, attributes, name) for name in ("has_position_table", "has_token_types"))
    gamma, beta = next(inputs), _next_input(inputs, attributes, "has_beta")
    result = ref.embedding(
        ids, cu_seqlens, words, gamma, beta, epsilon=attributes["epsilon"], token_types=types, type_table=kinds,
        positions=positions, position_table=rows, position_offset=attributes["position_offset"],
    )  # fmt: skip
    return (result,)


def _attention(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    heads, size, qkv_layout = (attributes[name] for name in ("num_heads", "head_size", "qkv_layout"))
    if qkv_layout == "separate":
        q, k, v = next(inputs), next(inputs), next(inputs)
    elif qkv_layout == "2HD":
        q, k = np.split(next(inputs), [heads * size], axis=1)
        v = ref.split_qkv(next(inputs), heads, size, "3HD", attributes["num_kv_heads"])[2]
    else:
        q, k, v = ref.split_qkv(next(inputs), heads, size, qkv_layout, attributes["num_kv_heads"])
    assert not attributes["has_qkv_bias"]
    cu_seqlens = next(inputs)
    _next_input(inputs, attributes, "has_tasks")
    table = next(inputs) if attributes["bias"] in ("slope", "distance") else None
    k_position, q_position = (_next_input(inputs, attributes, name) for name in ("has_k_position", "has_q_position"))
    result = ref.attention(
        q, k, v, cu_seqlens, num_heads=heads, head_size=size, scale=attributes["scale"],
        window=(attributes["window_left"], attributes["window_right"]),
        slopes=table if attributes["bias"] == "slope" else None,
        distance_bias=table if attributes["bias"] == "distance" else None, k_position=k_position,
        q_position=q_position,
    )  # fmt: skip
    return (result,)


def _rotary(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    options = {name: attributes[name] for name in ("head_size", "num_heads", "pairing")}
    return (ref.rotary(next(inputs), next(inputs), next(inputs), **options),)


def _qk_norm_rotary(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    options = {name: attributes[name] for name in ("epsilon", "num_heads", "num_kv_heads", "head_size", "pairing")}
    return (ref.qk_norm_rotary(*(next(inputs) for _ in range(5)), **options),)


def _layer_norm(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x = next(inputs)
    bias, residual = (_next_input(inputs, attributes, name) for name in ("has_bias", "has_residual"))
    gamma, beta = next(inputs), _next_input(inputs, attributes, "has_beta")
    result, total = ref.layer_norm(
        x, gamma, beta, epsilon=attributes["epsilon"], bias=bias, residual=residual, rms=bool(attributes["rms"])
    )
    return (result, total) if attributes["has_sum"] else (result,)


def _post_norm(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    y = ref.post_norm(next(inputs), next(inputs), next(inputs), epsilon=attributes["epsilon"])
    return (y, ref.moments(y)) if attributes["has_moments"] else (y,)


def _token_rows(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    y = ref.token_rows(next(inputs), next(inputs), attributes["scale"])
    return (y, ref.moments(y)) if attributes["has_moments"] else (y,)


def _pool(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x, cu_seqlens = next(inputs), next(inputs)
    return (ref.pool(x, cu_seqlens, attributes["mode"], bool(attributes["normalize"])),)


_OPERATORS: Mapping[str, Callable[[Inputs, Attributes], tuple[Array, ...]]] = MappingProxyType(
    {
        "PadfreeAttention": _attention,
        "PadfreeEmbedding": _embedding,
        "PadfreeIndex": _index,
        "PadfreeLayerNorm": _layer_norm,
        "PadfreePack": _pack,
        "PadfreePool": _pool,
        "PadfreePostNorm": _post_norm,
        "PadfreeQkNormRotary": _qk_norm_rotary,
        "PadfreeRotary": _rotary,
        "PadfreeSchedule": _schedule,
        "PadfreeTokenRows": _token_rows,
        "PadfreeUnpack": _unpack,
    }
)


def _operator(name: str) -> type[OpRun]:
    """The class that the evaluator needs: results of float operators have the type of their first float input."""

    def run(_: OpRun, *inputs: Array, **attributes: Any) -> tuple[Array, ...]:
        kinds = [item.dtype for item in inputs if np.issubdtype(item.dtype, np.floating)]
        results = _OPERATORS[name](iter(inputs), attributes)
        return tuple(item.astype(kinds[0]) if item.dtype == np.float64 else item for item in results)

    return type(name, (OpRun,), {"op_domain": "padfree", "_run": run})


_CLASSES = tuple(_operator(name) for name in _OPERATORS)


class Computation(NamedTuple):
    """What determines a node's computation: which optional tensors are there, but not the tensors' names."""

    op: str
    domain: str
    attributes: tuple[bytes, ...]
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


@functools.lru_cache(maxsize=4096)
def _runner(inputs: Computation, opsets: tuple[tuple[str, int], ...]) -> Callable[..., tuple[Array, ...]] | None:
    """What runs such a node; None if more of its model has to be known.

    It is kept for other models: creating it takes longer than running it on a few tokens.
    """
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    node = NodeProto(op_type=inputs.op, domain=inputs.domain)
    node.attribute.extend(AttributeProto.FromString(data) for data in inputs.attributes)
    node.input.extend(f"i{location}" if there else "" for location, there in enumerate(inputs.inputs))
    node.output.extend(f"o{location}" if there else "" for location, there in enumerate(inputs.outputs))
    graph = helper.make_graph([node], "node", [], [])
    try:
        (result,) = ReferenceEvaluator(
            helper.make_model(graph, opset_imports=imports), new_ops=list(_CLASSES)
        ).rt_nodes_
    except RuntimeContextError:  # for functions whose bodies depend on the types of their inputs
        return None
    return None if result.has_subgraph or result.has_linked_attribute else result.run


def _computation(node: NodeProto) -> Computation:
    attributes = tuple([attribute.SerializeToString() for attribute in node.attribute])
    return Computation(node.op_type, node.domain, attributes, (*map(bool, node.input),), (*map(bool, node.output),))


def evaluate(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of an original or a rewritten model, in the form that onnxruntime's `run` returns."""
    opsets = tuple(sorted({(item.domain, item.version) for item in model.opset_import}))
    runners = [_runner(_computation(node), opsets) for node in model.graph.node]
    with np.errstate(all="ignore"):
        if None in runners or any(function.domain != DOMAIN for function in model.functions):
            return list(ReferenceEvaluator(without_functions(model), new_ops=list(_CLASSES)).run(None, dict(feeds)))
        values: dict[str, Array | None] = {"": None}
        values |= {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        values |= feeds
        for node, runner in zip(model.graph.node, runners, strict=True):
            assert runner is not None
            values.update(zip(node.output, runner(*[values[name] for name in node.input]), strict=False))
        return [values[item.name] for item in model.graph.output]
