# SPDX-License-Identifier: Apache-2.0
"""Batching policies: on engines, and the host's time for each decision."""
