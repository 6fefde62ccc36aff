# SPDX-License-Identifier: Apache-2.0
"""CPU time of the rewriter, beside that of another commit."""
