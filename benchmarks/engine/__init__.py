# SPDX-License-Identifier: Apache-2.0
"""One engine or file: where its time and its memory go, and what it costs to make."""
