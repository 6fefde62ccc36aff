# SPDX-License-Identifier: Apache-2.0
"""Renames by the tables of `table/`, definition by definition, on syntax trees and tokens; `python -m tools.words`."""
