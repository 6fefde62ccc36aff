# SPDX-License-Identifier: Apache-2.0
"""padfree.serving: a plan or a rewritten model behind the HTTP APIs of OpenAI, Cohere and TEI."""

from .options import Limits, ServeOptions
from .served import Choices
from .supervisor import serve

__all__ = ["Choices", "Limits", "ServeOptions", "serve"]
