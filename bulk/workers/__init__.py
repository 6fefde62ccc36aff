# SPDX-License-Identifier: Apache-2.0
"""Who does the work: the worker itself, and where it runs, in local processes or in the actors of a Ray cluster."""
