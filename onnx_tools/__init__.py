# SPDX-License-Identifier: Apache-2.0
"""Rewrites ONNX encoders so that they compute no padding. Needs neither TensorRT nor CUDA."""

from .cost import DEFAULT_GPU, Lengths, costs
from .eight_bits import QUANTIZATION, quantize, quantize_gemms
from .errors import ModelFileError, RewriteError, VerificationError
from .files import load_model, save_model
from .gemms import GemmShape
from .graph_model import GraphModel
from .importing import bind_inputs, standard_model
from .linear import add_linear, with_linear
from .operators import without_functions
from .options import RewriteOptions
from .report import IN_BETWEEN, CoverageReport, percent
from .rewrite import RewriteResult, finish, rewrite, rewrite_model, with_bodies

__all__ = [
    "DEFAULT_GPU",
    "IN_BETWEEN",
    "QUANTIZATION",
    "CoverageReport",
    "GemmShape",
    "GraphModel",
    "Lengths",
    "ModelFileError",
    "RewriteError",
    "RewriteOptions",
    "RewriteResult",
    "VerificationError",
    "add_linear",
    "bind_inputs",
    "costs",
    "finish",
    "load_model",
    "percent",
    "quantize",
    "quantize_gemms",
    "rewrite",
    "rewrite_model",
    "save_model",
    "standard_model",
    "with_bodies",
    "with_linear",
    "without_functions",
]
