# SPDX-License-Identifier: Apache-2.0
"""padfree.contract: what rewriting, building and running agree on: the metadata that travels with models and plans.

Files that appear whole or not at all are written here, too. It needs only Python's standard library, and imports
nothing of padfree.
"""
