# SPDX-License-Identifier: Apache-2.0
"""Encoders written from config.json and safetensors: the padded graph that an export would give, without torch."""
