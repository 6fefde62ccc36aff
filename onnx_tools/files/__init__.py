# SPDX-License-Identifier: Apache-2.0
"""Model files: reading and writing them whole or not at all, and their weights, wherever these lie."""

from .data_files import locations
from .data_sizes import bytes_of
from .deferred_data import LARGE_MODEL_BYTES, DeferredData, of_bfloat16
from .message_builder import MessageBuilder
from .metadata import is_rewritten, read_metadata, write_metadata
from .model import Model, Piece, bytes_in_pieces, without_initializers
from .model_file import load_model, open_model, save_model
from .ort_session import open_session
from .scratch_files import write_model
from .weights import LARGE_BYTES, Storage, Weights

__all__ = [
    "LARGE_BYTES",
    "LARGE_MODEL_BYTES",
    "DeferredData",
    "MessageBuilder",
    "Model",
    "Piece",
    "Storage",
    "Weights",
    "bytes_in_pieces",
    "bytes_of",
    "is_rewritten",
    "load_model",
    "locations",
    "of_bfloat16",
    "open_model",
    "open_session",
    "read_metadata",
    "save_model",
    "without_initializers",
    "write_metadata",
    "write_model",
]
