# SPDX-License-Identifier: Apache-2.0
"""From a model to a plan: the network, TensorRT's builder, what it chose, and what is kept between builds."""
