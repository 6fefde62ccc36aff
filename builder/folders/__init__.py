# SPDX-License-Identifier: Apache-2.0
"""Folders as Hugging Face repositories have them: what is in one, and the one ONNX file that it becomes."""
