# SPDX-License-Identifier: Apache-2.0
"""From texts to answers in a program: vectors, scores in order, labels, and words with labels."""
