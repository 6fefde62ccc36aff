# SPDX-License-Identifier: Apache-2.0
"""Standard operators where S is 1: what TensorRT computes as the network is, and with longer axes.

    python -m tests.gpu.extent_of_one

Attention of q, k and v [B,S,H,D], and a convolution of x [B,S,E] along S: strongly typed networks without
any plugin. Prints the largest error of each batch relative to the result's root mean square, for the network as it is
and as padfree builds it: axes of products lengthened (builder/engine/lowering/short_axes.py), convolutions written as
products (onnx_tools/passes/expansion/convolutions.py).
Needs a GPU, TensorRT and PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto, numpy_helper, parser, shape_inference
from padfree.builder.engine.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.engine.lowering.short_axes import lengthen_short_axes
from padfree.builder.engine.profile import ShapeRange
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.passes.expansion.convolutions import expand_convolutions
from padfree.runtime.gpu.trt import import_tensorrt, shared_logger

from tests.support.messages import lower

HEADS, SIZE, TAPS = 12, 64, 3
BATCHES = ((1, 1), (3, 1), (8, 1), (1, 2), (2, 3))  # B x S
LIMIT = 512
_ATTENTION = """<ir_version: 9, opset_import: ["" : 17]>
attention (TYPE[B,S,H,D] q, TYPE[B,S,H,D] k, TYPE[B,S,H,D] v) => (TYPE[B,S,H,D] o) {
  rows = Transpose<perm = [0, 2, 1, 3]>(q)
  columns = Transpose<perm = [0, 2, 3, 1]>(k)
  scores = MatMul(rows, columns)
  weights = Softmax<axis = -1>(scores)
  values = Transpose<perm = [0, 2, 1, 3]>(v)
  context = MatMul(weights, values)
  o = Transpose<perm = [0, 2, 1, 3]>(context)
}"""
_CONVOLUTION = """<ir_version: 9, opset_import: ["" : 17]>
convolution (TYPE[B,S,E] x) => (TYPE[B,S,E] o) {
  channels = Transpose<perm = [0, 2, 1]>(x)
  sums = Conv<pads = [1, 1]>(channels, kernel)
  o = Transpose<perm = [0, 2, 1]>(sums)
}"""
_ROUNDED = _CONVOLUTION.replace("  o =", "  rounded =").replace(
    "(sums)", "(sums)\n  short = Cast<to = 16>(rounded)\n  o = Cast<to = 1>(short)"
)
_ROUNDED_FIRST = _CONVOLUTION.replace("  o =", "  short = Cast<to = 16>(sums)\n  turned =").replace(
    "(sums)\n}", "(short)\n  o = Cast<to = 1>(turned)\n}"
)
FORMS = {
    "attention": _ATTENTION,
    "convolution": _CONVOLUTION,
    "convolution, then bf16": _ROUNDED,
    "bf16, then transposed": _ROUNDED_FIRST,
}
CASES = (  # form, type, and the error that rounding may cause
    ("attention", "float", 1e-5),
    ("attention", "float16", 5e-3),
    ("convolution", "float", 1e-4),
    ("convolution", "float16", 3e-2),
    ("convolution, then bf16", "float", 4e-2),
    ("bf16, then transposed", "float", 4e-2),
)


def _kernel(kind: str) -> np.ndarray:
    """Weights [E,E,TAPS]."""
    width = HEADS * SIZE
    weights = np.random.default_rng(1).standard_normal((width, width, TAPS)) / np.sqrt(width * TAPS)
    return weights.astype(np.float16 if kind == "float16" else np.float32)


def network(form: str, kind: str, mended: bool) -> ModelProto:
    """The network of a form, in a type of ONNX's text form such as "float"; `mended`: as padfree builds it."""
    sizes = FORMS[form].replace("TYPE", kind).replace("H,D]", f"{HEADS},{SIZE}]").replace("E]", f"{HEADS * SIZE}]")
    model = parser.parse_model(sizes)
    if form != "attention":
        model.graph.initializer.append(numpy_helper.from_array(_kernel(kind), "kernel"))
    if mended:
        graph = gs.import_onnx(model)
        expand_convolutions(graph, analyse(graph))
        tidy(graph)
        model = gs.export_onnx(graph)
    model = shape_inference.infer_shapes(model)
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    if mended:
        lower(lengthen_short_axes, model)
    return model


def truth(kind: str, *inputs: np.ndarray) -> np.ndarray:
    """The result in float64: attention [B,S,H,D] of q, k and v, or the convolution [B,S,E] of x."""
    if len(inputs) == 1:
        x = np.pad(inputs[0].astype(np.float64), ((0, 0), (1, 1), (0, 0)))
        length = inputs[0].shape[1]
        summed: np.ndarray = sum(
            x[:, tap : tap + length] @ _kernel(kind)[:, :, tap].astype(np.float64).T for tap in range(TAPS)
        )  # type: ignore[assignment]
        return summed
    q, k, v = (value.astype(np.float64).transpose(0, 2, 1, 3) for value in inputs)
    scores = q @ k.transpose(0, 1, 3, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: np.ndarray = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return result


class Network:
    """An engine of the network, which runs on PyTorch's memory."""

    def __init__(self, model: ModelProto) -> None:
        trt = import_tensorrt()
        inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
        self.tails = {name: tuple(dim.dim_value for dim in dims)[2:] for name, dims in inputs.items()}
        ranges = [
            ShapeRange(name, (1, 1, *tail), (8, LIMIT, *tail), (8, LIMIT, *tail)) for name, tail in self.tails.items()
        ]
        built = EngineBuilder(0, TacticOptions(timing_cache=None), None).build(model, ranges)
        self._runtime = trt.Runtime(shared_logger(trt))
        self._engine = self._runtime.deserialize_cuda_engine(built.plan)
        half = model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
        self.dtype = np.float16 if half else np.float32

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The result, which has the shape of every input; its memory is full of NaN before the run."""
        import torch

        context, held = self._engine.create_execution_context(), dict[str, Any]()
        for name, value in inputs.items():
            held[name] = torch.from_numpy(value).cuda()
            context.set_input_shape(name, value.shape)
        held["o"] = torch.full_like(next(iter(held.values())), float("nan"))
        for name, tensor in held.items():
            context.set_tensor_address(name, tensor.data_ptr())
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise RuntimeError("TensorRT did not run the network")
        stream.synchronize()
        result: np.ndarray = held["o"].float().cpu().numpy()
        return result


def errors(form: str, kind: str, mended: bool) -> dict[tuple[int, int], float]:
    """Each batch's error; infinite if the result has NaN."""
    engine, rng = Network(network(form, kind, mended)), np.random.default_rng(0)
    found = {}
    for batch in BATCHES:
        given = {name: rng.standard_normal((*batch, *tail)).astype(engine.dtype) for name, tail in engine.tails.items()}
        wanted = truth(kind, *given.values())
        far = np.abs(engine.run(given) - wanted)
        far[np.isnan(far)] = np.inf
        found[batch] = float(far.max() / np.sqrt((wanted**2).mean()))
    return found


def main() -> None:
    """Prints the table."""
    for form, kind, _ in CASES:
        for mended in (False, True):
            row = ", ".join(f"{b} x {s}: {error:.1e}" for (b, s), error in errors(form, kind, mended).items())
            sys.stdout.write(f"{form:22s} {kind:8s} {'mended' if mended else 'as it is':8s} {row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
