# SPDX-License-Identifier: Apache-2.0
"""Helpers that tests of several folders, and benchmarks, share."""
