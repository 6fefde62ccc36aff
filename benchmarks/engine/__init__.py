# SPDX-License-Identifier: Apache-2.0
"""A single engine or file: where its time and its memory go, and what it costs to make."""
