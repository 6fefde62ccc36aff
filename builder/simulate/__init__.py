# SPDX-License-Identifier: Apache-2.0
"""padfree.builder.simulate: replays arrivals against measured cost tables and compares batching policies."""
