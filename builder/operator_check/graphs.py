# SPDX-License-Identifier: Apache-2.0
"""Small graphs around single operators, with the inputs that they are run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from padfree.contract.names import EIGHT_BITS, FORMAT
from padfree.onnx_tools.operators import ACT_TYPES, DOMAIN, DOMAIN_VERSION, OPERATORS, AttributeValue, make_node

Array = npt.NDArray[Any]

OPSET = 19
"""The first opset with e4m3."""
LENGTHS = (1, 0, 300, 77, 128, 200, 64, 65, 0, 33, 129, 16, 5)
SHORT_LENGTHS = (1, 0, 128, 77, 127, 64, 65, 0, 33, 16, 5)
PARENTS = tuple(-1 if number in (0, 4, 5) else 5 for number in range(len(LENGTHS)))
"""The sequence of LENGTHS that each continues, or -1."""
FILLER = 29
MAX_SEQ_LEN, MAX_SHORT = 512, 128
VOCABULARY = 1000
EPSILON = 1e-5
_HALVES: Mapping[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


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
        kind: "fp32", "fp16", "bf16", or "fp8" and "int8" for fp16 with rows of 8 bits.
        lengths: of the sequences, with FILLER tokens after them.
        interface: of the metadata, "packed" or "padded".
    """

    kind: str
    lengths: Sequence[int] = LENGTHS
    interface: str = "packed"
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: list[CheckedOutput] = field(default_factory=list)
    checked_nodes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.precision = "fp16" if self.kind in EIGHT_BITS else self.kind
        self.act = ACT_TYPES[self.precision]
        self._rng = np.random.default_rng(0)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[dict[str, Any]] = []
        self._values: list[onnx.ValueInfoProto] = []
        self._results: list[onnx.ValueInfoProto] = []

    @property
    def tokens(self) -> int:
        """T, with filler."""
        return sum(self.lengths) + FILLER

    def random(self, *shape: int, size: float = 1.0) -> Array:
        """Normally distributed numbers that the type holds, as float32."""
        values = (self._rng.standard_normal(shape) * size).astype(np.float32)
        return values.astype(_HALVES[self.precision]).astype(np.float32) if self.precision in _HALVES else values

    def rows(self, name: str, width: int, *, size: float = 1.0) -> str:
        """Tokens [T, width] in the type of the activations."""
        self._add_input(name, self.random(self.tokens, width, size=size), ["T", width], role="tokens", width=width)
        return self._as_act(name)

    def grid(self, name: str, width: int) -> str:
        """Padded tokens [B, S, width] in the type of the activations."""
        values = self.random(len(self.lengths), max(self.lengths), width)
        self._add_input(name, values, ["B", "S", width], role="tokens", width=width)
        return self._as_act(name)

    def mask(self, name: str = "mask") -> str:
        """A mask [B, S] with padding between tokens."""
        is_token = np.arange(max(self.lengths)) < np.asarray(self.lengths)[:, None]
        is_token &= self._rng.random(is_token.shape) < 0.7
        self._add_input(name, is_token.astype(np.int32), ["B", "S"], role="mask")
        return name

    def ids(self, name: str, limit: int) -> str:
        """Whole numbers [T] below `limit`."""
        values = self._rng.integers(0, limit, self.tokens).astype(np.int32)
        self._add_input(name, values, ["T"], role="tokens", limit=limit)
        return name

    def schedule(self, *, subject: bool = False, **attributes: AttributeValue) -> dict[str, str]:
        """A PadfreeSchedule of the lengths; its outputs by name."""
        self._add_input("seq_lens", np.asarray(self.lengths, np.int32), ["B"], role="seq_lens")
        inputs = {"seq_lens": "seq_lens", "tokens": self.ids("ids", VOCABULARY)}
        if attributes.get("has_extent"):
            self._add_input("max_seqlen", np.zeros(max(self.lengths), np.int32), ["S"], role="max_seqlen")
            inputs["extent"] = "max_seqlen"
        return self.node("PadfreeSchedule", inputs, subject=subject, **attributes)

    def prefix(self, numbers: Sequence[int]) -> str:
        """The sequence that each continues, [B]."""
        self._add_input("prefix", np.asarray(numbers, np.int32), ["F"], role="prefix")
        return "prefix"

    def weight(self, name: str, *shape: int, size: float = 1.0, mean: float = 0.0) -> str:
        """A constant in the type of the activations."""
        values = self.random(*shape, size=size) + np.float32(mean)
        if self.precision in _HALVES:
            values = values.astype(_HALVES[self.precision])
        self._weights.append(helper.make_tensor(name, self.act, values.shape, values.tobytes(), raw=True))
        return name

    def constant(self, name: str, values: Array) -> str:
        """A constant of its own type; float32 numbers of e4m3 become that where the type is ml_dtypes'."""
        if values.dtype == ml_dtypes.float8_e4m3fn:
            kind = TensorProto.FLOAT8E4M3FN
            self._weights.append(helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True))
        else:
            self._weights.append(numpy_helper.from_array(values, name))
        return name

    def node(
        self, operator: str, inputs: Mapping[str, str], *, subject: bool = True, **attributes: AttributeValue
    ) -> dict[str, str]:
        """A node of the domain padfree; its outputs by their names in the description.

        Attributes that are not given are plain ones: flags are 0, choices the first that is allowed.
        """
        spec = OPERATORS[operator]
        values = {item.name: attributes.get(item.name, _plain(item)) for item in spec.attributes}
        name = f"{operator}_{len(self._nodes)}"
        outputs = {item.name: f"{name}_{item.name}" for item in spec.outputs_for(values)}
        names = [inputs[item.name] for item in spec.inputs_for(values)]
        self._nodes.append(make_node(operator, names, list(outputs.values()), name=name, **values))
        if subject:
            self.checked_nodes.append(name)
        return outputs

    def standard(self, operator: str, *inputs: str) -> str:
        """A node of a standard operator with one output."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [f"{name}_y"], name=name))
        return f"{name}_y"

    def output(self, tensor: str, *, tokens: int | None = 0, kind: str = "act") -> None:
        """Makes a tensor an output of the graph; activations come as float32. `kind`: act, float32 or int32."""
        name = f"out_{len(self.outputs)}"
        wide = TensorProto.INT32 if kind == "int32" else TensorProto.FLOAT
        if kind == "act" and self.act != TensorProto.FLOAT:
            self._nodes.append(helper.make_node("Cast", [tensor], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
        else:
            for node in self._nodes:
                for index, output_name in enumerate(node.output):
                    if output_name == tensor:
                        node.output[index] = name
                for index, tensor_name in enumerate(node.input):
                    if tensor_name == tensor:
                        node.input[index] = name
        self._results.append(helper.make_tensor_value_info(name, wide, None))
        self.outputs.append(CheckedOutput(name, tokens))

    def model(self) -> onnx.ModelProto:
        """The graph, without bodies."""
        graph = helper.make_graph(self._nodes, "check", self._values, self._results, self._weights)
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

    def _add_input(self, name: str, values: Array, shape: Sequence[int | str], **tensor_attributes: Any) -> None:
        if name in self.feeds:
            return
        self.feeds[name] = values
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self._values.append(helper.make_tensor_value_info(name, kind, list(shape)))
        self._inputs.append({"name": name, "limit": None, "dtype": str(values.dtype), **tensor_attributes})

    def _as_act(self, name: str) -> str:
        if self.act == TensorProto.FLOAT:
            return name
        cast = f"{name}_{self.precision}"
        self._nodes.append(helper.make_node("Cast", [name], [cast], name=cast, to=self.act))
        return cast


def _plain(item: Any) -> AttributeValue:
    """An attribute's value in a plain node."""
    if item.type == "string":
        return str(item.allowed[0])
    if item.name == "epsilon":
        return EPSILON
    if item.type == "float":
        return max(1.0 if item.name == "y_scale" else 0.0, item.minimum or 0.0)
    return {"window_left": -1, "window_right": -1}.get(item.name, int(item.minimum or 0))
