# SPDX-License-Identifier: Apache-2.0
"""Biases of scores that come from distances and keys."""
