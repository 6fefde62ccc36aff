# SPDX-License-Identifier: Apache-2.0
"""Which input is the padding mask, and what masked slots hold."""

from .choice import UnprovedMaskError, choose_mask, mask_advice
from .evidence import inputs_in_running_sums
from .mask import VERY_NEGATIVE, MaskUse, PaddingMask, TableRows, prove_one
from .sequences import check_sequences, check_slots
from .slot_values import LOWEST, SlotValues

__all__ = [
    "LOWEST",
    "VERY_NEGATIVE",
    "MaskUse",
    "PaddingMask",
    "SlotValues",
    "TableRows",
    "UnprovedMaskError",
    "check_sequences",
    "check_slots",
    "choose_mask",
    "inputs_in_running_sums",
    "mask_advice",
    "prove_one",
]
