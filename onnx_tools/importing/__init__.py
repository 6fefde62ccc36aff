# SPDX-License-Identifier: Apache-2.0
"""From what exporters write to the one form that the passes work on."""
