# SPDX-License-Identifier: Apache-2.0
"""Llama (arXiv 2302.13971, 2307.09288)."""

from __future__ import annotations

from ...decoder import Decoder

LLAMA = Decoder(32000, 4096, 11008, 32, 32, 2048, has_network_bias=True).definition("Llama", "llama")
