# SPDX-License-Identifier: Apache-2.0
"""Trained models: scores in every precision beside those of padded PyTorch in fp32."""
