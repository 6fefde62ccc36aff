# SPDX-License-Identifier: Apache-2.0
"""Damaged input for every entry point of the Python side: python -m tests.fuzz --help."""
