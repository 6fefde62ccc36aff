# SPDX-License-Identifier: Apache-2.0
"""One spelling of what exporters write in many ways: Softmax, means, deviations and choices."""
