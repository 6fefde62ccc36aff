# SPDX-License-Identifier: Apache-2.0
"""`padfree demo`: a model made on the spot, rewritten, built and compared."""
