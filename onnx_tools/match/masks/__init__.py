# SPDX-License-Identifier: Apache-2.0
"""Which input is the padding mask, and what masked slots hold."""
