# SPDX-License-Identifier: Apache-2.0
"""padfree.serving.http: the front-end processes, which speak the APIs of OpenAI, Cohere and TEI."""
