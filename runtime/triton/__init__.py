# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.triton: the models that Triton's Python backend runs.

A repository's model.py is one line, and configures itself through config.pbtxt (see `parameters`):

    from padfree.runtime.triton.encoder import EncoderModel as TritonPythonModel
    from padfree.runtime.triton.tokenizer import TokenizerModel as TritonPythonModel
"""

from .parameters import EncoderParameters, TokenizerParameters

__all__ = [
    "EncoderParameters",
    "TokenizerParameters",
]
