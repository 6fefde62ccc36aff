# SPDX-License-Identifier: Apache-2.0
"""Puts GEMMs in e4m3 into a graph: their weights, the tensors that they multiply, and the nodes that make those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..analysis.graph import Editor, is_output, is_padfree, padfree_inputs, producer
from ..operators import OPERATORS
from ..passes import PassResult
from .layers import OPERATOR, Layer
from .weights import QuantizedWeights, e4m3_constant, half_scalar, zeros

NAME = "fp8"
_E4M3 = TensorProto.FLOAT8E4M3FN
_NORMS = ("PadfreeLayerNorm", "PadfreeEmbedding")


def narrow_gemms(
    graph: gs.Graph, precision: str, layers: Sequence[Layer], scales: Mapping[str, float], weights: QuantizedWeights
) -> PassResult:
    """Makes PadfreeLinear nodes of a graph PadfreeLinearFp8, in place.

    Args:
        graph: of a model in half precision.
        precision: fp16 or bf16.
        layers: the GEMMs.
        scales: of each tensor that they multiply, by its name: a power of two.
        weights: makes and keeps their weights in e4m3.

    If such a GEMM, a norm or an embedding makes a tensor, that node makes it in e4m3; so does attention whose result
    only such GEMMs read. Other tensors go through QuantizeLinear. Residuals stay in half precision. A tensor has one
    scale, whoever reads it, so no node has to make two tensors in e4m3.
    """
    narrowing = _Narrowing(graph, precision, layers, scales, weights)
    narrowing.run()
    return PassResult(NAME, len(layers))


class _Narrowing:
    """The changes to one graph."""

    def __init__(
        self,
        graph: gs.Graph,
        precision: str,
        layers: Sequence[Layer],
        scales: Mapping[str, float],
        weights: QuantizedWeights,
    ) -> None:
        self._graph, self._editor, self._precision = graph, Editor(graph), precision
        self._layers, self._scales, self._weights = layers, scales, weights
        self._chosen_ids = {id(layer.node) for layer in layers}
        self._narrow: dict[str, gs.Tensor] = {}  # by the name of the tensor that it is the e4m3 form of
        self._rows: dict[str, gs.Constant] = {}  # by the weight's name

    def run(self) -> None:
        """Decides which nodes make the tensors in e4m3, then changes every GEMM."""
        narrow_results = dict[int, gs.Tensor]()  # by the id of the GEMM that makes it
        for layer in self._layers:
            x = layer.node.inputs[0]
            if x.name in self._narrow:
                continue
            maker = producer(x)
            narrow = self._editor.variable(f"{x.name}_e4m3", _E4M3)
            self._narrow[x.name] = narrow
            if maker is not None and id(maker) in self._chosen_ids and self._gives(maker, x):
                narrow_results[id(maker)] = narrow
            elif maker is not None and is_padfree(maker, "PadfreeAttention") and not self._read_wide(x):
                maker.attrs.update(quantized=1, y_scale=self._scales[x.name])
                maker.outputs = [narrow]
            elif maker is not None and is_padfree(maker, *_NORMS) and maker.outputs[0] is x:
                self._narrow_rows(maker, x, narrow)
            else:
                self._quantize(x, narrow)
        for layer in self._layers:
            self._change(layer.node, narrow_results.get(id(layer.node)))

    def _narrow_rows(self, maker: gs.Node, x: gs.Tensor, narrow: gs.Tensor) -> None:
        """Lets a norm make its result x in e4m3, and in half precision only where something reads it so."""
        wide = self._read_wide(x)
        maker.attrs.update(results="both" if wide else "e4m3", y_scale=self._scales[x.name])
        maker.outputs = [*([x] if wide else []), narrow, *maker.outputs[1:]]

    def _gives(self, maker: gs.Node, x: gs.Tensor) -> bool:
        """Whether a GEMM can make its result in e4m3: not if it is rotated, and gated GEMMs make only one result."""
        if maker.attrs["rotary_features"] or maker.outputs[0] is not x:
            return False
        return not maker.attrs["gated"] or not self._read_wide(x)

    def _read_wide(self, tensor: gs.Tensor) -> bool:
        """Whether anything but GEMMs in e4m3 needs the tensor in half precision."""
        if is_output(self._graph, tensor):
            return True
        return any(
            item is tensor and not (id(node) in self._chosen_ids and position == 0)
            for node in tensor.outputs
            for position, item in enumerate(node.inputs)
        )

    def _quantize(self, x: gs.Tensor, narrow: gs.Tensor) -> None:
        """Adds QuantizeLinear of x. On a CPU onnxruntime has none for bfloat16, which goes through float32."""
        editor, scale = self._editor, self._scales[x.name]
        stem = f"{x.name}_scale"
        if self._precision == "bf16":
            x = editor.cast(x, np.float32, f"{x.name}_wide")
            scale_constant = editor.constant(stem, np.asarray(scale, np.float32))
        else:
            scale_constant = half_scalar(editor, stem, scale)
        zero = e4m3_constant(editor, f"{stem}_zero", np.zeros((), np.uint8))
        editor.node("QuantizeLinear", [x, scale_constant, zero], stem=narrow.name, output=narrow)

    def _change(self, node: gs.Node, narrow: gs.Tensor | None) -> None:
        """Gives a GEMM its weights and inputs in e4m3, and the results that are needed."""
        inputs = padfree_inputs(node)
        x, weight = inputs["x"], inputs["weight"]
        result, *moments = node.outputs
        wide = self._read_wide(result) or bool(moments) or narrow is None
        quantized = self._weights.of(weight)
        rows = self._rows_of(weight)
        scale = quantized.scale * np.float32(self._scales[x.name])
        inputs |= {"x": self._narrow[x.name], "weight": rows}
        inputs["scale"] = self._editor.constant(f"{weight.name}_scale", scale)
        if "bias" not in inputs:
            inputs["bias"] = zeros(self._editor, f"{weight.name}_no_bias", len(quantized.scale), self._precision)
        del node.attrs["has_bias"]
        node.op = OPERATOR
        node.attrs["results"] = "act" if narrow is None else "both" if wide else "e4m3"
        node.attrs["y_scale"] = 1.0 if narrow is None else self._scales[result.name]
        node.inputs = [inputs[spec.name] for spec in OPERATORS[OPERATOR].inputs_for(node.attrs)]
        node.outputs = [*([result] if wide else []), *([] if narrow is None else [narrow]), *moments]

    def _rows_of(self, weight: gs.Constant) -> gs.Constant:
        if weight.name not in self._rows:
            rows = self._weights.of(weight).rows
            self._rows[weight.name] = e4m3_constant(self._editor, f"{weight.name}_e4m3", rows)
        return self._rows[weight.name]
