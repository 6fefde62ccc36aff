# SPDX-License-Identifier: Apache-2.0
"""Trained models: scores in every precision compared with those of padded PyTorch in fp32."""
