# SPDX-License-Identifier: Apache-2.0
"""Attention written in standard operators where S is 1: what TensorRT gives alone, and what with longer products.

    python -m tests.gpu.extent_of_one

q, k and v are inputs [B,S,H,D] of a strongly typed network without any plugin. Prints the largest error of each batch
in parts of the result's root mean square, for the network as it is and with products lengthened as in padded engines
(builder/short_products.py). Needs a GPU, TensorRT and PyTorch (for memory).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, parser, shape_inference
from padfree.builder.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.profile import ShapeRange
from padfree.builder.short_products import lengthen_short_products
from padfree.runtime.trt import import_tensorrt, shared_logger

HEADS, SIZE = 12, 64
BATCHES = ((1, 1), (3, 1), (1, 2), (2, 3))  # B x S
LIMIT = 512
_NETWORK = """<ir_version: 9, opset_import: ["" : 17]>
attention (TYPE[B,S,H,D] q, TYPE[B,S,H,D] k, TYPE[B,S,H,D] v) => (TYPE[B,S,H,D] o) {
  rows = Transpose<perm = [0, 2, 1, 3]>(q)
  columns = Transpose<perm = [0, 2, 3, 1]>(k)
  scores = MatMul(rows, columns)
  weights = Softmax<axis = -1>(scores)
  values = Transpose<perm = [0, 2, 1, 3]>(v)
  context = MatMul(weights, values)
  o = Transpose<perm = [0, 2, 1, 3]>(context)
}"""


def network(kind: str, lengthened: bool) -> ModelProto:
    """Attention in a type of ONNX's text form, such as "float"."""
    sizes = _NETWORK.replace("TYPE", kind).replace("H,D]", f"{HEADS},{SIZE}]")
    model = shape_inference.infer_shapes(parser.parse_model(sizes))
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    if lengthened:
        lengthen_short_products(model)
    return model


def truth(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float64 [B,S,H,D]."""
    q, k, v = (value.astype(np.float64).transpose(0, 2, 1, 3) for value in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: np.ndarray = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return result


class Network:
    """An engine of the network, run on PyTorch's memory."""

    def __init__(self, model: ModelProto) -> None:
        trt = import_tensorrt()
        tail = (HEADS, SIZE)
        ranges = [ShapeRange(name, (1, 1, *tail), (8, LIMIT, *tail), (8, LIMIT, *tail)) for name in "qkv"]
        built = EngineBuilder(0, TacticOptions(timing_cache=None), None).build(model, ranges)
        self._runtime = trt.Runtime(shared_logger(trt))
        self._engine = self._runtime.deserialize_cuda_engine(built.plan)
        half = model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
        self.dtype = np.float16 if half else np.float32

    def run(self, **inputs: np.ndarray) -> np.ndarray:
        """The result [B,S,H,D], into memory that is NaN before."""
        import torch

        context, held = self._engine.create_execution_context(), dict[str, Any]()
        for name, value in inputs.items():
            held[name] = torch.from_numpy(value).cuda()
            context.set_input_shape(name, value.shape)
        held["o"] = torch.full_like(held["q"], float("nan"))
        for name, tensor in held.items():
            context.set_tensor_address(name, tensor.data_ptr())
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise RuntimeError("TensorRT did not run the network")
        stream.synchronize()
        result: np.ndarray = held["o"].float().cpu().numpy()
        return result


def errors(kind: str, lengthened: bool) -> dict[tuple[int, int], float]:
    """Each batch's error; infinite for NaN."""
    engine, rng = Network(network(kind, lengthened)), np.random.default_rng(0)
    found = {}
    for batch in BATCHES:
        q, k, v = (rng.standard_normal((*batch, HEADS, SIZE)).astype(engine.dtype) for _ in range(3))
        wanted = truth(q, k, v)
        far = np.abs(engine.run(q=q, k=k, v=v) - wanted)
        far[np.isnan(far)] = np.inf
        found[batch] = float(far.max() / np.sqrt((wanted**2).mean()))
    return found


def main() -> None:
    """Prints the table."""
    for kind in ("float", "float16"):
        for lengthened in (False, True):
            row = ", ".join(f"{b} x {s}: {error:.1e}" for (b, s), error in errors(kind, lengthened).items())
            sys.stdout.write(f"{kind:8s} {'lengthened' if lengthened else 'as it is':10s} {row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
