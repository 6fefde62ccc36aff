"""Served by padfree; config.pbtxt configures it."""

from padfree.runtime.triton.encoder import EncoderModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
