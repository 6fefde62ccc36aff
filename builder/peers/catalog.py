# SPDX-License-Identifier: Apache-2.0
"""Everything that padfree can be compared with, by the name that --peers takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from . import any_model, deberta, engines, onnxruntime_peers, torch_peers, varlen, varseqlen
from .contender import Contender
from .setup import Setup


@dataclass(frozen=True)
class Peer:
    """One peer: what tables call it, and what makes it ready (UnavailableError where it cannot take part)."""

    title: str
    make: Callable[[Setup], Contender]


LIMIT = "limit"
GPU_PEERS: Mapping[str, Peer] = {
    "tensorrt": Peer("TensorRT padded, weakly typed", partial(engines.padded_contender, typing="weak")),
    "tensorrt-strong": Peer("TensorRT padded, strongly typed", partial(engines.padded_contender, typing="strong")),
    "tensorrt-fp8": Peer("TensorRT padded, products in e4m3", partial(engines.padded_e4m3, attention=False)),
    "tensorrt-fp8-attention": Peer(
        "TensorRT padded, products and attention in e4m3", partial(engines.padded_e4m3, attention=True)
    ),
    "packed-tensorrt-fp8": Peer("padfree packed, products by TensorRT in e4m3", engines.packed_e4m3),
    "padded-interface": Peer("padfree, padded interface", engines.padded_interface),
    "varseqlen": Peer("NVIDIA varseqlen plugins", varseqlen.varseqlen),
    "torch-eager": Peer("PyTorch eager, padded", torch_peers.eager),
    "torch-compile": Peer("torch.compile, padded", torch_peers.compiled_model),
    "torch-varlen": Peer(
        "PyTorch varlen, compiled",
        partial(varlen.packed_contender, attention=varlen.varlen_attention, forward_of=varlen.written_anew),
    ),
    "transformers-varlen": Peer(
        "transformers, varlen attention, packed, compiled",
        partial(
            varlen.packed_contender,
            attention=varlen.varlen_attention,
            forward_of=any_model.packed_forward,
            tries_first=True,
        ),
    ),
    "torch-flex": Peer(
        "PyTorch flex_attention, packed, compiled",
        partial(varlen.packed_contender, attention=varlen.flex_attention, forward_of=varlen.written_anew),
    ),
    "flashdeberta": Peer("flashdeberta, padded", deberta.flashdeberta),
    "disentangled-flash": Peer("disentangled-flash, packed, compiled", deberta.disentangled_flash),
    "onnxruntime-gpu": Peer("onnxruntime GPU, padded", onnxruntime_peers.original_on_gpu),
    LIMIT: Peer("limit: the matrix products alone, cuBLAS", torch_peers.gemm_limit),
}
CPU_PEERS: Mapping[str, Peer] = {"onnxruntime": Peer("onnxruntime, original padded", onnxruntime_peers.original_on_cpu)}
