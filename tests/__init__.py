# SPDX-License-Identifier: Apache-2.0
"""Tests, and the code that they share (`tests.support`)."""
