# SPDX-License-Identifier: Apache-2.0
"""Element types: half precision with every cast written out, and what it cannot hold."""
