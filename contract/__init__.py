# SPDX-License-Identifier: Apache-2.0
"""padfree.contract: what rewriting, building and running agree on: the metadata that travels with models and plans.

Files that appear whole or not at all are made here, too. It needs Python's standard library alone, and imports nothing
of padfree.
"""
