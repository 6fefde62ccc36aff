# SPDX-License-Identifier: Apache-2.0
"""Chains of nodes, told by what they compute: heads, rotary embeddings, norms, activations, GEMMs."""
