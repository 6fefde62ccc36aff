# SPDX-License-Identifier: Apache-2.0
"""From inputs to tokens: finds files, cuts them into shards, parses rows, makes tokens of texts."""
