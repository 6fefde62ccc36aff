# SPDX-License-Identifier: Apache-2.0
"""padfree.serving: a plan or a rewritten model with the HTTP APIs of OpenAI, Cohere and TEI."""

from padfree.runtime.text import Choices

from .options import Limits, ServeOptions
from .supervisor import serve

__all__ = ["Choices", "Limits", "ServeOptions", "serve"]
