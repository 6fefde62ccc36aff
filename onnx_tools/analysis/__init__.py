# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph without running it: its tensors' shapes, layouts, values and limits."""
