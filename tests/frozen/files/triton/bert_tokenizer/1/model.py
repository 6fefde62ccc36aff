"""Served by padfree; config.pbtxt configures it."""

from padfree.runtime.triton.tokenizer import TokenizerModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
