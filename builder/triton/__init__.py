# SPDX-License-Identifier: Apache-2.0
"""Model repositories for NVIDIA's Triton Inference Server; docs/guide/triton.md."""

from .repository import Repository, write_repository
from .serving import ServingOptions

__all__ = ["Repository", "ServingOptions", "write_repository"]
