# SPDX-License-Identifier: Apache-2.0
"""Layer norms: on packed tokens, and folded into the GEMMs around them."""
