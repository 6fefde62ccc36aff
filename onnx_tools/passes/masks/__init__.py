# SPDX-License-Identifier: Apache-2.0
"""Which slots are padding: what proves it, and what tensors hold there."""
