# SPDX-License-Identifier: Apache-2.0
"""Graph changes for TensorRT alone: nodes are merged, replaced or bounded when a rewritten model becomes a network."""

from .lowering import bound_max_seqlen, for_parser, lower, name_plugin_nodes, set_max_seq_len

__all__ = ["bound_max_seqlen", "for_parser", "lower", "name_plugin_nodes", "set_max_seq_len"]
