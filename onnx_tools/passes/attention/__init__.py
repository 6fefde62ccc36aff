# SPDX-License-Identifier: Apache-2.0
"""Attention, from its Softmax outward."""
