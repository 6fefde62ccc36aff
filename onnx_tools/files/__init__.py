# SPDX-License-Identifier: Apache-2.0
"""Model files: reading and writing them whole or not at all, and their weights, wherever these lie."""

from .data_files import locations
from .data_sizes import bytes_of
from .deferred_data import LARGE_MODEL_BYTES, Array, DeferredData, Floats, of_bfloat16
from .external_data import model_tensors, node_tensors
from .graph_io import export_model, import_graph
from .message_builder import MessageBuilder
from .metadata import definition_entry, fixed_entry, is_rewritten, read_metadata, text_entry, write_metadata
from .model import (
    Model,
    Piece,
    all_graphs,
    all_nodes,
    bytes_in_pieces,
    copy_message,
    fed_inputs,
    names_read,
    replace_items,
    subgraphs,
    without_initializers,
)
from .model_file import check_model_data, load_model, open_model, save_model
from .node_builder import NodeBuilder
from .ort_session import open_session, parts_of, results_of
from .scratch_files import write_model
from .weight_columns import join_columns, zeros_for
from .weights import LARGE_BYTES, HeldValues, Storage, Weights, array_of, bytes_of_array, held_constant, own_values

__all__ = [
    "LARGE_BYTES",
    "LARGE_MODEL_BYTES",
    "Array",
    "DeferredData",
    "Floats",
    "HeldValues",
    "MessageBuilder",
    "Model",
    "NodeBuilder",
    "Piece",
    "Storage",
    "Weights",
    "all_graphs",
    "all_nodes",
    "array_of",
    "bytes_in_pieces",
    "bytes_of",
    "bytes_of_array",
    "check_model_data",
    "copy_message",
    "definition_entry",
    "export_model",
    "fed_inputs",
    "fixed_entry",
    "held_constant",
    "import_graph",
    "is_rewritten",
    "join_columns",
    "load_model",
    "locations",
    "model_tensors",
    "names_read",
    "node_tensors",
    "of_bfloat16",
    "open_model",
    "open_session",
    "own_values",
    "parts_of",
    "read_metadata",
    "replace_items",
    "results_of",
    "save_model",
    "subgraphs",
    "text_entry",
    "without_initializers",
    "write_metadata",
    "write_model",
    "zeros_for",
]
