# SPDX-License-Identifier: Apache-2.0
"""The parts of a quantisation to e4m3 (onnx_tools/fp8.py): calibration, what GEMMs lose, and the graph."""
