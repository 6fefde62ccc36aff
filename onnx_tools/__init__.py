# SPDX-License-Identifier: Apache-2.0
"""Rewrites ONNX encoders so that they compute no padding. Needs neither TensorRT nor CUDA."""

from .errors import ModelFileError, RewriteError, VerificationError
from .model_file import load_model, save_model
from .operators import without_functions

__all__ = [
    "ModelFileError",
    "RewriteError",
    "VerificationError",
    "load_model",
    "save_model",
    "without_functions",
]
