# SPDX-License-Identifier: Apache-2.0
"""What a comparison found, for the terminal, for scripts and as a page."""
