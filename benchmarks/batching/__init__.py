# SPDX-License-Identifier: Apache-2.0
"""Calls and a Batcher over several GPUs."""
