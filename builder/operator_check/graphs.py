# SPDX-License-Identifier: Apache-2.0
"""Small graphs around single operators, with the inputs that they are run on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper
from padfree.contract.names import EIGHT_BITS, FORMAT
from padfree.onnx_tools.operators import (
    ACT_TYPES,
    DOMAIN,
    DOMAIN_VERSION,
    OPERATORS,
    AttributeValue,
    TensorSpec,
    make_node,
)
from padfree.runtime import Array

Attributes = Mapping[str, AttributeValue]

OPSET = 19
"""The first opset with e4m3."""
LENGTHS = (1, 0, 300, 77, 128, 200, 64, 65, 0, 33, 129, 16, 5)
SHORT_LENGTHS = (1, 0, 128, 77, 127, 64, 65, 0, 33, 16, 5)
PARENTS = tuple(-1 if number in (0, 4, 5) else 5 for number in range(len(LENGTHS)))
"""The sequence of LENGTHS that each continues, or -1."""
FILLER = 29
MAX_SEQ_LEN, MAX_SHORT = 512, 128
HEADS, SIZE = 12, 64
WIDTH = HEADS * SIZE
FEATURES = 1536
VOCABULARY = 1000
STEP = 2.0**-5
"""The scale of normally distributed numbers in 8 bits."""
_PLAIN: Attributes = {
    "num_heads": HEADS,
    "num_kv_heads": HEADS,
    "head_size": SIZE,
    "window_left": -1,
    "window_right": -1,
    "epsilon": 1e-5,
    "x_epsilon": 1e-5,
    "y_scale": STEP,
}
_SIZES = {"E": WIDTH, "K": WIDTH, "N": FEATURES, "W": 3 * WIDTH, "V": VOCABULARY, "P": 512}
_OTHER_SIZES = {
    "PadfreeEmbedding": {"N": 2},
    "PadfreeLayerNorm": {"N": WIDTH},
    "PadfreePostNorm": {"N": WIDTH},
    "PadfreeTokenRows": {"N": WIDTH},
    "PadfreePack": {"...": WIDTH},
}
"""What the letters of shapes stand for, and where they stand for something else."""
_OF_SCHEDULES = {"cu_seqlens", "tasks", "positions"}
_NARROW: Mapping[str, tuple[int, Any]] = {
    "fp8": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "int8": (TensorProto.INT8, np.int8),
}
_TYPICAL = 42.0
"""The standard deviation of weights in 8 bits."""
_HALVES: Mapping[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def plain_attributes(operator: str, changes: Attributes) -> dict[str, AttributeValue]:
    """A node's attributes: those that are not changed do as little as possible."""
    plain = dict[str, AttributeValue]()
    for item in OPERATORS[operator].attributes:
        plain[item.name] = _PLAIN.get(item.name, item.allowed[0] if item.allowed else item.minimum or 0)
        if item.type == "int":
            plain[item.name] = int(plain[item.name])
    return {**plain, **changes}


def _frequencies(shape: Sequence[int]) -> Array:
    """As rotary embeddings have them; those beyond heads of SIZE repeat."""
    one = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    return np.resize(one, shape)


_CONSTANTS: Mapping[str, Callable[[Sequence[int]], Array]] = {
    "frequencies": _frequencies,
    "slopes": lambda shape: 2.0 ** -np.arange(1, shape[0] + 1),
    "y_factors": lambda shape: np.linspace(20, 40, shape[0]),
    "distance_bias": lambda shape: np.random.default_rng(1).standard_normal(shape),
}
"""Inputs in float32 whose numbers mean something."""


@dataclass(frozen=True)
class CheckedOutput:
    """One output of a graph: `tokens` is the axis of tokens, of which filler is left out; None: there is none."""

    name: str
    tokens: int | None


@dataclass
class CaseGraph:
    """A graph under construction, in one type of activations, and the arrays that it is run on.

    All numbers are exact in the type, so that a reference in float32 computes from the same ones.

    Args:
        kind: "fp32", "fp16", "bf16"; "int32" for operators without activations; "fp8" and "int8" for fp16 with rows of
            8 bits.
        lengths: tokens of the sequences, which FILLER tokens follow.
        interface: that of the metadata, "packed" or "padded".
    """

    kind: str
    lengths: Sequence[int] = LENGTHS
    interface: str = "packed"
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: list[CheckedOutput] = field(default_factory=list)
    checked_nodes: list[str] = field(default_factory=list)
    flops: float = 0.0

    def __post_init__(self) -> None:
        self.precision = {**dict.fromkeys(EIGHT_BITS, "fp16"), "int32": "fp32"}.get(self.kind, self.kind)
        self.act = ACT_TYPES[self.precision]
        self._rng = np.random.default_rng(0)
        self._nodes: list[NodeProto] = []
        self._outputs: dict[str, tuple[TensorSpec, Mapping[str, int]]] = {}
        self._weights: dict[str, TensorProto] = {}
        self._inputs: list[dict[str, Any]] = []
        self._values: list[onnx.ValueInfoProto] = []
        self._results: list[onnx.ValueInfoProto] = []

    @property
    def tokens(self) -> int:
        """T, with filler."""
        return sum(self.lengths) + FILLER

    def operator(
        self,
        operator: str,
        attributes: Attributes = MappingProxyType({}),
        tensors: Mapping[str, str] = MappingProxyType({}),
        *,
        sizes: Mapping[str, int] = MappingProxyType({}),
        subject: bool = True,
    ) -> dict[str, str]:
        """A node of the domain padfree; its outputs by their names in the description.

        Args:
            operator: its description says which inputs it has, and their shapes.
            attributes: those that differ from plain ones.
            tensors: inputs by name; all others are random numbers.
            sizes: for letters in shapes, where the usual ones do not fit the tensors.
            subject: whether the node is checked.
        """
        spec, values = OPERATORS[operator], plain_attributes(operator, attributes)
        letters = {**_SIZES, "B": len(self.lengths), "S": max(self.lengths), "T": self.tokens, "...": self.tokens}
        letters |= {item.letter: int(values[item.name]) for item in spec.attributes if item.letter}
        letters |= {**_OTHER_SIZES.get(operator, {}), **sizes}
        items = spec.inputs_for(values)
        if not _OF_SCHEDULES.isdisjoint(item.name for item in items):
            flags: dict[str, AttributeValue]
            flags = {"has_positions": int(any(item.name == "positions" for item in items))}
            flags |= {name: values[name] for name in ("num_heads", "has_tasks") if name in values}
            tensors = {**self.operator("PadfreeSchedule", flags, subject=False), **tensors}
        inputs = [tensors.get(item.name) or self._input(item, letters) for item in items]
        name = f"{operator}_{len(self._nodes)}"
        outputs = {item.name: f"{name}_{item.name}" for item in spec.outputs_for(values)}
        self._nodes.append(make_node(operator, inputs, list(outputs.values()), name=name, **values))
        self._outputs |= {outputs[item.name]: (item, letters) for item in spec.outputs_for(values)}
        if subject:
            self.checked_nodes.append(name)
            self.flops += sum(
                2.0 * self.tokens * letters["K"] * letters["N"] for item in items if item.name == "weight"
            )
            if operator == "PadfreeAttention":
                self.flops += self._attention_flops(values)
        return outputs

    def give(self, *tensors: str) -> CaseGraph:
        """Makes results of nodes outputs of the graph: activations in float32, e4m3 through a GEMM with 1."""
        for tensor in tensors:
            item, letters = self._outputs[tensor]
            axis = item.axes.index("T") if "T" in item.axes else 0 if item.axes[0] == "..." else None
            kind = item.type
            if kind == "fp8":
                tensor, kind = self._widen(tensor, item.sizes(letters)[-1]), "act"
            self._output(tensor, kind, axis)
        if self.interface == "packed" and "seq_lens" not in self.feeds:  # sessions want lengths of every packed model
            self.give(self.operator("PadfreeSchedule", subject=False)["cu_seqlens"])
        return self

    def model(self) -> onnx.ModelProto:
        """The graph, without bodies."""
        graph = helper.make_graph(self._nodes, "check", self._values, self._results, list(self._weights.values()))
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def metadata(self) -> dict[str, Any]:
        """The object that a session would read, without an engine."""
        plugins = [node.op_type for node in self._nodes if node.domain == DOMAIN]
        kinds = {item.name: item.type.tensor_type.elem_type for item in self._results}
        return {
            "format": FORMAT,
            "interface": self.interface,
            "precision": self.precision,
            "inputs": self._inputs,
            "outputs": [
                {
                    "name": item.name,
                    "layout": "constant",
                    "dtype": "int32" if kinds[item.name] == TensorProto.INT32 else "float32",
                }
                for item in self.outputs
            ],
            "max_positions": None,
            "plugins": {name: plugins.count(name) for name in plugins},
        }

    def _attention_flops(self, values: Attributes) -> float:
        """The operations of an attention node, without those on keys outside of a window."""
        left, right = int(values["window_left"]), int(values["window_right"])
        most = math.inf if left < 0 else 1 + left + right
        keys = sum(min(length, most) * length for length in self.lengths)
        return 4.0 * int(values["num_heads"]) * int(values["head_size"]) * keys

    def _input(self, item: TensorSpec, letters: Mapping[str, int]) -> str:
        """What an operator reads: an input of the graph, or a constant."""
        if item.type == "int32":
            return self._integers(item)
        shape = item.sizes(letters)
        if item.type in _NARROW:
            return self._narrow_rows(item.type, shape) if "T" in item.axes else self._narrow_weight(item, shape)
        if item.type == "float32":
            values = np.full(shape, STEP / _TYPICAL * letters["K"] ** -0.5)  # the scale of a product
            make = _CONSTANTS.get(item.name)
            return self._constant(item.name, TensorProto.FLOAT, (make(shape) if make else values).astype(np.float32))
        if item.axes[0] in ("T", "B", "..."):
            axes = ["T" if axis == "..." else axis for axis in item.axes[:-1]]
            self._add_input(item.name, self._random(shape), [*axes, shape[-1]], role="tokens", width=shape[-1])
            return self._as_act(item.name)
        scale = 0.1 if item.name.endswith(("gamma", "beta")) else 1.0
        scale = shape[0] ** -0.5 if item.name.endswith("weight") else scale
        return self._weight(item.name, self._random(shape, scale) + np.float32(item.name.endswith("gamma")))

    def _integers(self, item: TensorSpec) -> str:
        """An input of whole numbers."""
        name = role = {"tokens": "ids", "extent": "max_seqlen"}.get(item.name, item.name)
        lengths, limit = np.asarray(self.lengths), None
        values: Array = np.asarray(PARENTS)
        if name == "mask":
            is_token = np.arange(lengths.max()) < lengths[:, None]
            values = np.asarray(is_token & (self._rng.random(is_token.shape) < 0.7))  # with padding between tokens
        elif name == "seq_lens":
            values = lengths
        elif name == "max_seqlen":
            values = np.zeros(lengths.max())
        elif name != "prefix":
            role, limit = "tokens", 2 if name == "token_types" else VOCABULARY
            values = self._rng.integers(0, limit, self.tokens)
        self._add_input(name, values.astype(np.int32), item.axes, role=role, limit=limit)
        return name

    def _narrow_rows(self, kind: str, shape: Sequence[int]) -> str:
        """Rows in 8 bits: e4m3 by a norm, int8 by QuantizeLinear."""
        if kind == "fp8":
            sizes = {"E": shape[-1]}
            flags: Attributes = {"has_beta": 1, "results": "e4m3"}
            rows = self.operator("PadfreeLayerNorm", flags, sizes=sizes, subject=False)
            return rows["y_e4m3"]
        self._add_input("x", self._random(shape), ["T", shape[-1]], role="tokens", width=shape[-1])
        inputs = [
            self._as_act("x"),
            self._constant("step", TensorProto.FLOAT16, np.asarray(STEP, np.float16)),
            self._constant("zero", TensorProto.INT8, np.zeros((), np.int8)),
        ]
        self._nodes.append(helper.make_node("QuantizeLinear", inputs, ["x_int8"], name="x_int8"))
        return "x_int8"

    def _narrow_weight(self, item: TensorSpec, shape: Sequence[int]) -> str:
        kind, dtype = _NARROW[item.type]
        values = np.clip(self._rng.standard_normal(shape) * _TYPICAL, -127, 127)
        return self._constant(item.name, kind, values.astype(np.float32).astype(dtype))

    def _widen(self, rows: str, width: int) -> str:
        """Rows in e4m3 in the type of the activations: engines have no outputs in e4m3."""
        kind, dtype = _NARROW["fp8"]
        inputs = {
            "x": rows,
            "weight": self._constant("one", kind, np.eye(width, dtype=np.float32).astype(dtype)),
            "scale": self._constant("one_scale", TensorProto.FLOAT, np.full(width, STEP, np.float32)),
            "bias": self._weight("no_bias", np.zeros(width, np.float32)),
        }
        return self.operator("PadfreeLinearFp8", tensors=inputs, subject=False)["y"]

    def _output(self, tensor: str, kind: str, tokens: int | None) -> None:
        name = f"out_{len(self.outputs)}"
        if kind.startswith("act") and self.act != TensorProto.FLOAT:
            self._nodes.append(helper.make_node("Cast", [tensor], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
        else:
            for names in (names for node in self._nodes for names in (node.input, node.output)):
                names[:] = [name if own == tensor else own for own in names]
        wide = TensorProto.INT32 if kind == "int32" else TensorProto.FLOAT
        self._results.append(helper.make_tensor_value_info(name, wide, None))
        self.outputs.append(CheckedOutput(name, tokens))

    def _random(self, shape: Sequence[int], size: float = 1.0) -> Array:
        """Normally distributed numbers that the type holds, as float32."""
        values = (self._rng.standard_normal(shape) * size).astype(np.float32)
        return values.astype(_HALVES.get(self.precision, np.float32)).astype(np.float32)

    def _weight(self, name: str, values: Array) -> str:
        """A constant in the type of the activations."""
        return self._constant(name, self.act, values.astype(_HALVES.get(self.precision, np.float32)))

    def _constant(self, name: str, kind: int, values: Array) -> str:
        own = name if name not in self._weights else f"{name}_{len(self._nodes)}"
        self._weights[own] = helper.make_tensor(own, kind, values.shape, values.tobytes(), raw=True)
        return own

    def _add_input(self, name: str, values: Array, shape: Sequence[int | str], **facts: Any) -> None:
        if name in self.feeds:
            return
        self.feeds[name] = values
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self._values.append(helper.make_tensor_value_info(name, kind, list(shape)))
        self._inputs.append({"name": name, "limit": None, "dtype": str(values.dtype), **facts})

    def _as_act(self, name: str) -> str:
        if self.act == TensorProto.FLOAT:
            return name
        cast = f"{name}_{self.precision}"
        self._nodes.append(helper.make_node("Cast", [name], [cast], name=cast, to=self.act))
        return cast
