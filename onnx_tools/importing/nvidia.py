# SPDX-License-Identifier: Apache-2.0
"""Files with nodes of NVIDIA's variable-length BERT plugins, as padded models in standard operators.

The plugins read tokens as [T,E,1,1], linear layers are 1 x 1 convolutions or plugins, and Q, K and V are interleaved by
heads, [T,H,3,D,1,1]. Here tokens become [B,S,E], and cu_seqlens becomes a mask, as in any other export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from ..files import MessageBuilder, Model

EMBEDDING, ATTENTION = "CustomEmbLayerNormPluginDynamic", "CustomQKVToContextPluginDynamic"
SKIP, LINEAR, GELU = "CustomSkipLayerNormPluginDynamic", "CustomFCPluginDynamic", "CustomGeluPluginDynamic"
PLUGINS = frozenset({EMBEDDING, ATTENTION, SKIP, LINEAR, GELU})
"""Operators that are plugins of TensorRT's demo BERT, in whatever domain a file has them."""
IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
_INT8 = 2  # in the plugins' field type_id
_SCALE = "dq_probs"  # the field of scales of probabilities, which attention in int8 has
_EPSILON = 1e-12  # BERT's own; the plugins add nothing to a variance
_OPSET = 17
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Cast", "Div", "Erf", "Exp", "Identity", "LeakyRelu", "Mul", "Neg", "Pow", "Relu", "Sigmoid"}
    | {"Sqrt", "Sub", "Tanh"}
)
_ADVICE = (
    "rewrite the float model that it was made from (the .onnx file before the plugins, or the Hugging Face folder) "
    "with --interface varseqlen, whose inputs are the same (docs/guide/migrating.md)"
)


def without_plugins(model: Model) -> Model:
    """The model with inputs [B,S] (ids, token types, mask) and without plugins.

    Raises RewriteError for nodes in int8, for plugins of padded tensors, and for nodes between them that are not linear
    layers, activations or additions.
    """
    return Model.of(_PluginConversion(model).run())


def _error(node: NodeProto, reason: str) -> RewriteError:
    name = node.name or (node.output[0] if node.output else "")
    return RewriteError(f"node '{name}' ({node.op_type}) {reason}; {_ADVICE}")


def _fields(node: NodeProto) -> dict[str, Any]:
    """Attributes as numbers, arrays and lists. Raises RewriteError for a node in int8."""
    fields: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            if value.data_type == TensorProto.INT8:
                raise _error(node, "computes in int8, with scales that no float model holds")
            value = numpy_helper.to_array(value)
        fields[attribute.name] = value
    if fields.get("type_id") == _INT8 or _SCALE in fields:
        raise _error(node, "computes in int8, with scales that no float model holds")
    return fields


class _PluginConversion(MessageBuilder):
    """Writes the nodes of the new graph, in the order of the old ones."""

    def __init__(self, model: Model) -> None:
        super().__init__(prefix="nvidia_", opset=_OPSET)
        self._old = model.proto.graph
        self._arrays = {item.name: np.asarray(model.array(item)) for item in self._old.initializer}
        self._tokens: set[str] = set()  # tensors [B,S,E]
        self._types_read = False

    def run(self) -> ModelProto:
        """Makes the whole model."""
        for node in self._old.node:
            if node.op_type == "Constant":
                self._arrays[node.output[0]] = numpy_helper.to_array(helper.get_attribute_value(node.attribute[0]))
                continue
            write = _WRITERS.get(node.op_type)
            if write is not None:
                write(self, node, _fields(node))
            elif node.op_type in _ELEMENTWISE:
                self._elementwise(node)
            else:
                raise _error(node, "stands between NVIDIA's plugins, and is no linear layer and no activation")
            self._tokens.add(node.output[0])
        names = [IDS, *([TYPES] if self._types_read else []), MASK]
        for name in names:
            self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]))
        for item in self._old.output:
            self.graph.output.append(helper.make_tensor_value_info(item.name, TensorProto.FLOAT, None))
        self.graph.name = self._old.name or "bert"
        return helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)

    def embedding(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes the norm of three tables' rows, summed. The second output, attention's mask, is made again."""
        if len(node.input) != 4:
            raise _error(node, f"has {len(node.input)} inputs; the one of variable-length engines has four")
        tables = [self._matrix(node, fields, f"bert_embeddings_{name}_embeddings", None)
                  for name in ("word", "token_type", "position")]  # fmt: skip
        self._types_read = True
        total = self.op("Gather", self.constant(tables[0]), IDS, axis=0)
        for table, index in ((tables[1], TYPES), (tables[2], self.slots(IDS, 1))):
            total = self.op("Add", total, self.op("Gather", self.constant(table), index, axis=0))
        self._norm(node, total, fields, "bert_embeddings_layernorm_")

    def attention(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes attention: heads of [B,S,H,3,D], softmax under the mask, and [B,S,E] again."""
        if not fields.get("var_seqlen", 0):
            raise _error(node, "has var_seqlen 0: it reads padded tensors")
        width, heads = int(fields["hidden_size"]), int(fields["num_heads"])
        split = self.reshape(self._read(node, 0), 0, 0, heads, 3, width // heads)
        parts = [self.op("Gather", split, part, axis=3) for part in range(3)]
        q, k, v = (self.op("Transpose", part, perm=[0, 2, 3, 1] if at == 1 else [0, 2, 1, 3])
                   for at, part in enumerate(parts))  # fmt: skip
        scale = self.constant((width // heads) ** -0.5)
        is_token = self.unsqueeze(self.op("Cast", MASK, to=TensorProto.FLOAT), 1, 2)
        hidden = self.op("Mul", self.op("Sub", 1.0, is_token), -1e4)
        scores = self.op("Add", self.op("Mul", self.op("MatMul", q, k), scale), hidden)
        result = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        rows = self.op("Transpose", result, perm=[0, 2, 1, 3])
        self.reshape(rows, 0, 0, width, output=node.output[0])

    def skip_norm(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes the norm of a sum, with a bias or without."""
        total = self.op("Add", self._read(node, 0), self._read(node, 1))
        self._norm(node, self._add_bias(total, fields), fields, "")

    def linear(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes a linear layer whose weights are fields, [N,K]."""
        bias = np.asarray(fields["B"], np.float32).ravel() if np.size(fields.get("B", ())) else None
        self._gemm(node, self._matrix(node, fields, "W", int(fields["out_dims"])), bias)

    def convolution(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes a linear layer that is a 1 x 1 convolution."""
        weight, bias = self._arrays.get(node.input[1]), None
        if weight is None or weight.ndim != 4 or weight.shape[2:] != (1, 1) or fields.get("group", 1) != 1:
            raise _error(node, "is no convolution of 1 x 1 with constant weights")
        if len(node.input) > 2 and node.input[2]:
            bias = self._arrays.get(node.input[2])
            if bias is None:
                raise _error(node, "has a bias that is no constant")
        self._gemm(node, weight[:, :, 0, 0], bias)

    def gelu(self, node: NodeProto, fields: Mapping[str, Any]) -> None:
        """Writes the plugin's formula, by tanh, with a bias before it or without."""
        x = self._add_bias(self._read(node, 0), fields)
        cube = self.op("Mul", self.op("Pow", x, 3.0), 0.044715)
        inner = self.op("Mul", self.op("Add", x, cube), (2 / np.pi) ** 0.5)
        gate = self.op("Add", self.op("Tanh", inner), 1.0)
        half = self.op("Mul", x, 0.5)
        self.op("Mul", half, gate, output=node.output[0])

    def squeeze(self, node: NodeProto, _: Mapping[str, Any]) -> None:
        """Writes an Identity: [T,E,1,1] to [T,E] changes nothing here."""
        self.op("Identity", self._read(node, 0), output=node.output[0])

    def _add_bias(self, x: str, fields: Mapping[str, Any]) -> str:
        bias = np.ravel(fields.get("bias", ()))
        return self.op("Add", x, self.constant(bias)) if bias.size else x

    def _elementwise(self, node: NodeProto) -> None:
        inputs = []
        for position, name in enumerate(node.input):
            value = self._arrays.get(name)
            if value is None:
                inputs.append(self._read(node, position))
            elif value.size == 1 or (value.ndim == 4 and value.size == value.shape[1]):
                flat = value.reshape(() if value.size == 1 else -1)
                inputs.append(self.constant(flat, np.float32 if flat.dtype.kind == "f" else flat.dtype))
            else:
                raise _error(node, f"has a constant of shape {list(value.shape)}")
        if node.op_type == "Cast":  # between float types: everything is float32 here
            self.op("Identity", *inputs, output=node.output[0])
            return
        copy = helper.make_node(node.op_type, inputs, list(node.output), node.name, domain=node.domain)
        copy.attribute.extend(node.attribute)
        self.graph.node.append(copy)

    def _matrix(self, node: NodeProto, fields: Mapping[str, Any], name: str, rows: int | None) -> Any:
        """A field as a matrix that has this many rows or, with None, is as wide as the norm after it."""
        value = np.asarray(fields.get(name, ()), np.float32).ravel()
        width = (
            np.size(fields.get("bert_embeddings_layernorm_gamma", ())) if rows is None else value.size // max(rows, 1)
        )
        if not value.size or not width or value.size % width:
            raise _error(node, f"has a field {name} of {value.size} numbers, which are no rows of a table")
        return value.reshape(-1, width)

    def _norm(self, node: NodeProto, x: str, fields: Mapping[str, Any], prefix: str) -> None:
        scale, shift = (np.asarray(fields.get(f"{prefix}{name}", ()), np.float32).ravel() for name in ("gamma", "beta"))
        if not scale.size or scale.size != shift.size:
            raise _error(node, f"has {scale.size} numbers of gamma and {shift.size} of beta")
        gamma, beta = self.constant(scale), self.constant(shift)
        self.op("LayerNormalization", x, gamma, beta, output=node.output[0], axis=-1, epsilon=_EPSILON)

    def _gemm(self, node: NodeProto, weight: Any, bias: Any) -> None:
        x, matrix = self._read(node, 0), self.constant(np.asarray(weight).T)
        if bias is None:
            self.op("MatMul", x, matrix, output=node.output[0])
        else:
            gemm = self.op("MatMul", x, matrix)
            self.op("Add", gemm, self.constant(bias), output=node.output[0])

    def _read(self, node: NodeProto, position: int) -> str:
        """An input that holds tokens."""
        name = str(node.input[position])
        if name not in self._tokens:
            raise _error(node, f"reads '{name}', which does not come from NVIDIA's embedding plugin")
        return name


_WRITERS: Mapping[str, Callable[[_PluginConversion, NodeProto, Mapping[str, Any]], None]] = MappingProxyType(
    {
        EMBEDDING: _PluginConversion.embedding,
        ATTENTION: _PluginConversion.attention,
        SKIP: _PluginConversion.skip_norm,
        LINEAR: _PluginConversion.linear,
        GELU: _PluginConversion.gelu,
        "Conv": _PluginConversion.convolution,
        "Squeeze": _PluginConversion.squeeze,
    }
)
