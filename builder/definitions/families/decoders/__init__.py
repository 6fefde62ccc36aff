# SPDX-License-Identifier: Apache-2.0
"""Llama and its relatives, as encoders."""

from __future__ import annotations

from .eurobert import EUROBERT
from .gemma import GEMMA
from .gemma3 import GEMMA3
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen import QWEN2, QWEN3

DECODERS = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, EUROBERT, GEMMA3)
