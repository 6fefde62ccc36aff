# SPDX-License-Identifier: Apache-2.0
"""Models that make texts as re-rankers: the score of an answer's token, and the template that asks for it."""
