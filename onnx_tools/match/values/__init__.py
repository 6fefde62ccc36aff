# SPDX-License-Identifier: Apache-2.0
"""Which values of an input keep a slot, and which distances a window keeps."""
