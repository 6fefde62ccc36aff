# SPDX-License-Identifier: Apache-2.0
"""PadfreeAttention beside the fastest attention to be had, and what keeps it from being faster."""
