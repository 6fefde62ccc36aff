# SPDX-License-Identifier: Apache-2.0
"""What is written out first: Einsum, convolutions, pooling over all positions, batch norms and sums."""
