# SPDX-License-Identifier: Apache-2.0
"""What the documents show of recorded measurements: tables and pictures."""
