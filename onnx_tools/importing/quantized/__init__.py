# SPDX-License-Identifier: Apache-2.0
"""Files whose numbers are rounded by QuantizeLinear and DequantizeLinear, made into float ones."""
