# SPDX-License-Identifier: Apache-2.0
"""Single kernels without TensorRT: matrix products, and those that memory bounds."""
