# SPDX-License-Identifier: Apache-2.0
"""Changes GEMMs of a graph to 8 bits: their weights, the tensors that they multiply, and the nodes that make these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, is_output, is_padfree, once, padfree_inputs, producer
from ..files import Floats
from ..operators import ACT_TYPES, OPERATORS
from ..passes import PassResult
from .formats import E4M3, Format
from .layers import Layer
from .scales import TensorScale
from .weights import QuantizedWeights, act_constant, constant_of, corrected_bias, half_scalar, zeros

_NORMS = ("PadfreeLayerNorm", "PadfreeEmbedding")


def narrow_gemms(
    graph: gs.Graph,
    precision: str,
    layers: Sequence[Layer],
    scales: Mapping[str, TensorScale],
    weights: QuantizedWeights,
    number_format: Format,
    shifts: Mapping[str, Floats] = MappingProxyType({}),
) -> PassResult:
    """Turns PadfreeLinear nodes of a graph into PadfreeLinearFp8 or PadfreeLinearInt8, in place.

    If such a GEMM makes a tensor that another one multiplies, it writes that tensor in 8 bits itself. In e4m3, so do
    norms and embeddings, and attention if only such GEMMs read its result. Every other tensor goes through
    QuantizeLinear, after a Mul with the reciprocals of its factors if it has some. Residuals stay in half precision. A
    tensor has one scale for all of its readers, so that no node has to write two tensors in 8 bits.

    Args:
        graph: of a model in half precision.
        precision: fp16 or bf16.
        layers: the GEMMs.
        scales: of each tensor that they multiply, by its name.
        weights: quantises their weights, and keeps the results.
        number_format: the 8-bit type.
        shifts: what biases take away from results, float32 [N], by the names of the GEMMs.
    """
    _Narrowing(graph, precision, layers, scales, weights, number_format, shifts).run()
    return PassResult(number_format.precision, len(layers))


class _Narrowing:
    """The changes to one graph."""

    def __init__(
        self,
        graph: gs.Graph,
        precision: str,
        layers: Sequence[Layer],
        scales: Mapping[str, TensorScale],
        weights: QuantizedWeights,
        number_format: Format,
        shifts: Mapping[str, Floats],
    ) -> None:
        self._graph, self._editor, self._precision = graph, Editor(graph), precision
        self._layers, self._scales, self._weights = layers, scales, weights
        self._format, self._shifts = number_format, shifts
        self._chosen_ids = {id(layer.node) for layer in layers}
        self._narrow: dict[str, gs.Tensor] = {}  # 8-bit tensors, by the name of the wide one
        self._rows: dict[tuple[str, str], gs.Constant] = {}  # by the weight's name, and the key of the factors

    def run(self) -> None:
        """Decides which nodes make the tensors in 8 bits, then changes every GEMM."""
        narrow_results = dict[int, gs.Tensor]()  # by the id of the GEMM that makes them
        for layer in self._layers:
            x = layer.node.inputs[0]
            if x.name in self._narrow:
                continue
            maker = producer(x)
            narrow = self._editor.variable(f"{x.name}_{self._format.name}", self._format.element_type)
            self._narrow[x.name] = narrow
            if maker is not None and id(maker) in self._chosen_ids and self._gives(maker, x):
                narrow_results[id(maker)] = narrow
            elif maker is None or self._format is not E4M3:
                self._quantize(x, narrow)
            elif is_padfree(maker, "PadfreeAttention") and not self._read_wide(x):
                maker.attrs.update(quantized=1, y_scale=self._scales[x.name].value)
                maker.outputs = [narrow]
            elif is_padfree(maker, *_NORMS) and maker.outputs[0] is x:
                self._narrow_rows(maker, x, narrow)
            else:
                self._quantize(x, narrow)
        for layer in self._layers:
            self._change(layer, narrow_results.get(id(layer.node)))

    def _narrow_rows(self, maker: gs.Node, x: gs.Tensor, narrow: gs.Tensor) -> None:
        """Makes a norm write its result x in e4m3, and in half precision too if something reads that."""
        wide = self._read_wide(x)
        maker.attrs.update(results="both" if wide else "e4m3", y_scale=self._scales[x.name].value)
        maker.outputs = [*([x] if wide else []), narrow, *maker.outputs[1:]]

    def _gives(self, maker: gs.Node, x: gs.Tensor) -> bool:
        """Whether a GEMM can write its result in 8 bits: not if it rotates it; gated GEMMs write only one result."""
        if maker.attrs["rotary_features"] or maker.outputs[0] is not x:
            return False
        return not maker.attrs["gated"] or not self._read_wide(x)

    def _read_wide(self, tensor: gs.Tensor) -> bool:
        """Whether anything but GEMMs in 8 bits needs the tensor in half precision."""
        if is_output(self._graph, tensor):
            return True
        return any(
            item is tensor and not (id(node) in self._chosen_ids and position == 0)
            for node in tensor.outputs
            for position, item in enumerate(node.inputs)
        )

    def _quantize(self, x: gs.Tensor, narrow: gs.Tensor) -> None:
        """Adds a QuantizeLinear of x. bfloat16 goes through float32: onnxruntime on CPUs has no kernel for it."""
        editor, scale, factors = self._editor, self._scales[x.name].value, self._scales[x.name].factors
        stem = f"{x.name}_scale"
        if factors is not None:
            reciprocals = act_constant(editor, f"{x.name}_factors", (1 / factors).astype(np.float32), self._precision)
            product = editor.variable(f"{x.name}_smooth", ACT_TYPES[self._precision])
            editor.op("Mul", x, reciprocals, output=product)
            x = product
        if self._precision == "bf16":
            x = editor.cast(x, np.float32, f"{x.name}_wide")
            scale_constant = editor.constant(stem, np.asarray(scale, np.float32))
        else:
            scale_constant = half_scalar(editor, stem, scale)
        zero = constant_of(editor, f"{stem}_zero", np.zeros((), np.uint8), self._format)
        editor.op("QuantizeLinear", x, scale_constant, zero, output=narrow)

    def _change(self, layer: Layer, narrow: gs.Tensor | None) -> None:
        """Gives a GEMM its weights and inputs in 8 bits, and the results that are needed."""
        node = layer.node
        inputs = padfree_inputs(node)
        x, weight = inputs["x"], inputs["weight"]
        result, *moments = node.outputs
        wide = self._read_wide(result) or bool(moments) or narrow is None
        x_scale = self._scales[x.name]
        quantized = self._weights.of(weight, x_scale)
        rows = self._rows_of(weight, x_scale)
        scale = quantized.scale * np.float32(x_scale.value)
        inputs |= {"x": self._narrow[x.name], "weight": rows}
        inputs["scale"] = self._editor.constant(f"{weight.name}_scale", scale)
        if "bias" not in inputs:
            inputs["bias"] = zeros(self._editor, f"{weight.name}_no_bias", len(quantized.scale), self._precision)
        if (shift := self._shifts.get(layer.name)) is not None and isinstance(inputs["bias"], gs.Constant):
            inputs["bias"] = corrected_bias(self._editor, inputs["bias"], shift, self._precision)
        del node.attrs["has_bias"]
        node.op = self._format.operator
        node.attrs["results"] = "act" if narrow is None else "both" if wide else self._format.name
        if self._format is E4M3:
            node.attrs["y_scale"] = 1.0 if narrow is None else self._scales[result.name].value
        elif narrow is not None:
            inputs["y_factors"] = self._result_factors(node, result, len(quantized.scale))
        node.inputs = [inputs[spec.name] for spec in OPERATORS[node.op].inputs_for(node.attrs)]
        node.outputs = [*([result] if wide else []), *([] if narrow is None else [narrow]), *moments]

    def _result_factors(self, node: gs.Node, result: gs.Tensor, features: int) -> gs.Constant:
        """The factors of a result's columns before they are rounded: float32 [N], or [N/2] of a gated GEMM."""
        scale, columns = self._scales[result.name], features // 2 if node.attrs["gated"] else features
        divisors = np.float32(scale.value) * (np.ones(columns, np.float32) if scale.factors is None else scale.factors)
        return self._editor.constant(f"{result.name}_y_factors", (1 / divisors).astype(np.float32))

    def _rows_of(self, weight: gs.Constant, scale: TensorScale) -> gs.Constant:
        stem, rows = f"{weight.name}_{self._format.name}", self._weights.of(weight, scale).rows
        key = weight.name, scale.key
        return once(self._rows, key, lambda: constant_of(self._editor, stem, rows, self._format))
