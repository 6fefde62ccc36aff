# SPDX-License-Identifier: Apache-2.0
"""What is written in many ways becomes one form, which the other passes know; what does nothing goes."""
