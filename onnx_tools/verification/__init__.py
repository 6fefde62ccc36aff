# SPDX-License-Identifier: Apache-2.0
"""Original and rewritten model side by side in onnxruntime."""
