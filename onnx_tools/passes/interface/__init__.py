# SPDX-License-Identifier: Apache-2.0
"""The packed interface, which replaces the padded inputs and outputs and the mask."""

from .interface import MAX_SEQLEN, SEQ_LENS, packed_interface

__all__ = ["MAX_SEQLEN", "SEQ_LENS", "packed_interface"]
