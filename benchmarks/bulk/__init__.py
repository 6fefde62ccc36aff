# SPDX-License-Identifier: Apache-2.0
"""Whole data sets: tokens per second on one GPU and on several, from files to files."""
