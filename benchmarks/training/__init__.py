# SPDX-License-Identifier: Apache-2.0
"""Balanced batches: how equal the work of ranks is, and steps a second on several GPUs."""
