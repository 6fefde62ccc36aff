# SPDX-License-Identifier: Apache-2.0
"""Every operator in every type on this machine's GPU, beside references: what `padfree doctor --check` runs."""
