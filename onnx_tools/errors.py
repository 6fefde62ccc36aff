# SPDX-License-Identifier: Apache-2.0
"""Errors of padfree.onnx_tools: each message says what failed, the value, what is allowed and the next step."""


class RewriteError(ValueError):
    """A model cannot be rewritten, or a rewritten graph is not what its description allows."""


class VerificationError(RewriteError):
    """Original and rewritten model do not agree, or a converted graph is not consistent."""


class ModelFileError(RewriteError):
    """A model file cannot be read or written."""
