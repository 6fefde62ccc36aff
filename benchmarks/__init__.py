# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, one package per subject; they run as modules in the repository's root: `python -m benchmarks.attention`.

They need padfree installed. Their results are kept in `benchmarks/results`, from which `benchmarks.pages` makes the
tables and pictures of the documents.
"""
