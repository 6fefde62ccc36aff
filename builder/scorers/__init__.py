# SPDX-License-Identifier: Apache-2.0
"""Text-generating models as rerankers: the score of an answer's token, and the template that asks for it."""
