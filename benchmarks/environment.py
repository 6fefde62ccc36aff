# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made with, and the JSON lines that keep it: from builder/bench/environment.py."""

from from_package import load

_module = load("environment")
environment, append_record = _module.environment, _module.append_record
