# SPDX-License-Identifier: Apache-2.0
"""PadfreeAttention compared with the fastest attention available, and what keeps it from being faster."""
