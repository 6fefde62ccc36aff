# SPDX-License-Identifier: Apache-2.0
"""Every engine is checked where it was built: the plan runs ragged batches whose answers onnxruntime gave meanwhile."""
