# SPDX-License-Identifier: Apache-2.0
"""Balanced batches: how equal the ranks' work is, and steps per second on several GPUs."""
