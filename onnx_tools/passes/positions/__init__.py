# SPDX-License-Identifier: Apache-2.0
"""What is computed from positions alone."""
