# SPDX-License-Identifier: Apache-2.0
"""Names that rewriting, building and running share: keys, roles, layouts, interfaces and precisions."""

from os import PathLike
from pathlib import Path

DOMAIN = "padfree"
"""The domain of the operators that rewritten models hold."""
ONNX_METADATA_KEY = "padfree"
"""The key of a rewritten model's metadata among ONNX's `metadata_props`."""
TEXT_METADATA_KEY = "padfree_text"
"""The key of an exported model's TextInfo, from its folder, until the model is rewritten."""
FIXED_METADATA_KEY = "padfree_fixed"
"""The key of the inputs of an exported model that were bound to numbers, until the model is rewritten."""
DEFINITION_METADATA_KEY = "padfree_definition"
"""The key of which definition wrote a model from weights, and whether it is `own`, until the model is rewritten."""
FORMAT = 1
"""The version of that metadata."""
ONNX_SUFFIX = ".onnx"
INTERFACES = ("packed", "padded", "varseqlen")
"""varseqlen: the packed one with the inputs of NVIDIA's variable-length BERT engines."""
PRECISIONS = ("fp32", "fp16", "bf16")
HALF = "half"
"""Asks for a precision: fp16, or bf16 where fp16 cannot hold what the GEMMs of tokens read or write."""
FP8 = "fp8"
"""Asks for GEMMs in e4m3; everything else is HALF."""
INT8 = "int8"
"""Asks for GEMMs in int8; everything else is HALF."""
EIGHT_BITS = (FP8, INT8)
"""What needs calibration."""
WHOLE = "whole"
"""Instead of True: asks for a verification that takes every sequence through all layers."""
MASKS = ("any", "contiguous")
"""The masks that are allowed where distances between tokens count: any, or those without holes between tokens."""
PER_SEQUENCE = "per_sequence"
"""The role of inputs, and the layout of outputs, that have a row for every sequence: [B, ...]."""
POSITIONS, OTHER_VALUES = "positions", "other"
HELD_ROLES = (POSITIONS, OTHER_VALUES)
"""What a graph proves a token input to hold: positions, or something that is neither these, nor ids, nor types."""
PREFIX = "prefix"
INPUT_ROLES = ("tokens", PER_SEQUENCE, "seq_lens", "cu_seqlens", "max_seqlen", PREFIX, "mask", "unread")
OUTPUT_LAYOUTS = ("packed", PER_SEQUENCE, "padded", "constant")

ORT_WRONG_FUSIONS = ("MatmulTransposeFusion",)
"""Optimizers of onnxruntime that are disabled wherever answers count: in 1.31, this one multiplies a transposed tensor
with a vector as if the tensor were not transposed."""
ORT_AS_WRITTEN = ("session.disable_quant_qdq", "1")
"""An option of onnxruntime, without which it computes QuantizeLinear and DequantizeLinear around or before a MatMul as
a MatMul of integers, with another result."""


def is_onnx(path: str | PathLike[str]) -> bool:
    """Whether a file is an ONNX model by its name, in upper or lower case; all other models are plans."""
    return Path(path).suffix.lower() == ONNX_SUFFIX
