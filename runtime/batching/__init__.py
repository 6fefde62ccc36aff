# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.batching: collects single requests of many callers into runs of a Session."""

from .budget import Budget, cut

__all__ = ["Budget", "cut"]
