# SPDX-License-Identifier: Apache-2.0
"""Products of packed tokens by weights, with what follows them: PadfreeLinear."""
