# SPDX-License-Identifier: Apache-2.0
"""Whole models on one GPU compared with their peers, over lengths, fill, tokens and models."""
