# SPDX-License-Identifier: Apache-2.0
"""What padfree is compared with: other ways to run the same model on the same batch."""
