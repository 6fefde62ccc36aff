# SPDX-License-Identifier: Apache-2.0
"""Long attacks on a running server, with everything at once: `python -m tests.hostile`."""
