# SPDX-License-Identifier: Apache-2.0
"""Damaged input at every door of the Python side: python -m tests.fuzz --help."""
