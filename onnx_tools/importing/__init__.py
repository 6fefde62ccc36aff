# SPDX-License-Identifier: Apache-2.0
"""From what exporters write to the one form that the passes work on."""

from .bound_inputs import bind_inputs
from .canonical import runnable
from .control_flow import keep_needed
from .inputs import mark_rows, numbers_of, sequence_inputs_of, shared_inputs_of, token_inputs_of
from .newer_opsets import raise_opset
from .skeleton import infer, skeleton_of

__all__ = [
    "bind_inputs",
    "infer",
    "keep_needed",
    "mark_rows",
    "numbers_of",
    "raise_opset",
    "runnable",
    "sequence_inputs_of",
    "shared_inputs_of",
    "skeleton_of",
    "token_inputs_of",
]
