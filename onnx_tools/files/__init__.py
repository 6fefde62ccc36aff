# SPDX-License-Identifier: Apache-2.0
"""Model files: reading and writing them whole or not at all, and their weights, wherever these lie."""
