# SPDX-License-Identifier: Apache-2.0
"""Arrays on the GPU, in and out."""
