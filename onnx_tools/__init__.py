# SPDX-License-Identifier: Apache-2.0
"""Rewrites ONNX encoders so that they compute no padding. Needs neither TensorRT nor CUDA."""

from .errors import ModelFileError, RewriteError, VerificationError
from .files.model_file import load_model, save_model
from .importing.bound_inputs import bind_inputs
from .importing.importing import standard_model
from .operators import without_functions
from .options import RewriteOptions
from .report import CoverageReport
from .rewrite import RewriteResult, rewrite

__all__ = [
    "CoverageReport",
    "ModelFileError",
    "RewriteError",
    "RewriteOptions",
    "RewriteResult",
    "VerificationError",
    "bind_inputs",
    "load_model",
    "rewrite",
    "save_model",
    "standard_model",
    "without_functions",
]
