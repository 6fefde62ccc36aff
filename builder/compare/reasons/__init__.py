# SPDX-License-Identifier: Apache-2.0
"""Why a model differs from the original, and at which tensor it begins to."""
