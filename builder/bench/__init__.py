# SPDX-License-Identifier: Apache-2.0
"""`padfree bench`: an engine beside its peers on one batch, answers first, then times, in one process."""
