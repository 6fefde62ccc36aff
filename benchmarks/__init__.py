# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, a package a subject; they run as modules in the repository's root: `python -m benchmarks.attention`.

They need padfree installed. What they measured is kept in `benchmarks/results`, from which `benchmarks.pages` writes
the tables and pictures of the documents.
"""
