# SPDX-License-Identifier: Apache-2.0
"""Tokens in other layouts than [B,S,...]."""
