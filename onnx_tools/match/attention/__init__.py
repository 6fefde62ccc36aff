# SPDX-License-Identifier: Apache-2.0
"""Scores, Softmax and weights: one attention."""
