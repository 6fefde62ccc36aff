# SPDX-License-Identifier: Apache-2.0
"""Damaged input at every door (entry point) of the Python side: python -m tests.fuzz --help."""
