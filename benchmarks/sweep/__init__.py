# SPDX-License-Identifier: Apache-2.0
"""Whole models on one GPU beside their peers, over lengths, fill, tokens and models."""
