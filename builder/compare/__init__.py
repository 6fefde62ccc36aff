# SPDX-License-Identifier: Apache-2.0
"""padfree.builder.compare: is it the same model, and if not, where does it differ? See comparison.compare."""
