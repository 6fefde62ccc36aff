# SPDX-License-Identifier: Apache-2.0
"""The error that padfree.training raises."""


class SamplerError(ValueError):
    """Lengths, sizes or ranks that make no batches; the message names the value, what is allowed and the next step."""
