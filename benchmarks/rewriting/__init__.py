# SPDX-License-Identifier: Apache-2.0
"""CPU time of the rewriter, compared with that of another commit."""
