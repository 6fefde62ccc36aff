# SPDX-License-Identifier: Apache-2.0
"""From what exporters write to the one form that the passes work on."""

from .axes import check_axes
from .bound_inputs import bind_inputs
from .canonical import name_outputs, runnable
from .control_flow import keep_needed
from .importing import import_model, original_of, standard_model
from .inputs import (
    axis_groups,
    mark_rows,
    numbers_of,
    rows_of_one_number,
    sequence_inputs_of,
    shared_inputs_of,
    token_inputs_of,
)
from .lengths import LengthsInput, lengths_among, put_mask, take_lengths
from .newer_opsets import raise_opset, raise_opset_of_graph
from .refusals import check_not_rewritten
from .skeleton import infer, skeleton_of

__all__ = [
    "LengthsInput",
    "axis_groups",
    "bind_inputs",
    "check_axes",
    "check_not_rewritten",
    "import_model",
    "infer",
    "keep_needed",
    "lengths_among",
    "mark_rows",
    "name_outputs",
    "numbers_of",
    "original_of",
    "put_mask",
    "raise_opset",
    "raise_opset_of_graph",
    "rows_of_one_number",
    "runnable",
    "sequence_inputs_of",
    "shared_inputs_of",
    "skeleton_of",
    "standard_model",
    "take_lengths",
    "token_inputs_of",
]
