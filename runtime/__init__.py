# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime: runs padfree engines (TensorRT) and rewritten ONNX files (onnxruntime) on ragged batches."""

from padfree.contract.metadata import EngineInfo, InputInfo, Metadata, OutputInfo, Profile

from . import word_table
from .backend import Backend, RunOptions
from .budget import Budget, cut
from .chunks import run_chunks
from .errors import OutputSizeError, SessionError
from .feeds import packed_feeds, padded_feeds, padded_inputs, split_outputs
from .gpu import plugin_library  # which remembers where Python was started
from .masks import kept_slots, mask_values
from .plan_files import check_no_folder, file_digest, open_plan, parse_metadata, read_sidecar, sidecar_path
from .prefixes import order_of_runs
from .random_batches import random_batch, random_rows, random_values
from .rows import Array, bounds_of, ranges
from .runner import Runner
from .sequence_values import read_values, sample_values
from .session import Session, budget_of
from .shared_values import groups_of_shared

__all__ = [
    "Array",
    "Backend",
    "Budget",
    "EngineInfo",
    "InputInfo",
    "Metadata",
    "OutputInfo",
    "OutputSizeError",
    "Profile",
    "RunOptions",
    "Runner",
    "Session",
    "SessionError",
    "bounds_of",
    "budget_of",
    "check_no_folder",
    "cut",
    "file_digest",
    "groups_of_shared",
    "kept_slots",
    "mask_values",
    "open_plan",
    "order_of_runs",
    "packed_feeds",
    "padded_feeds",
    "padded_inputs",
    "parse_metadata",
    "plugin_library",
    "random_batch",
    "random_rows",
    "random_values",
    "ranges",
    "read_sidecar",
    "read_values",
    "run_chunks",
    "sample_values",
    "sidecar_path",
    "split_outputs",
    "word_table",
]
