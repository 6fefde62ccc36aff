# SPDX-License-Identifier: Apache-2.0
"""Single kernels without TensorRT: matrix products, and kernels that are bound by memory."""
