# SPDX-License-Identifier: Apache-2.0
"""Model repositories for NVIDIA's Triton Inference Server; docs/triton.md."""

from .repository import Repository, write_repository
from .serving import BACKENDS, ServingOptions

__all__ = ["BACKENDS", "Repository", "ServingOptions", "write_repository"]
