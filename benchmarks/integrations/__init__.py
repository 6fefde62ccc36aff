# SPDX-License-Identifier: Apache-2.0
"""What users of other libraries get: texts in, vectors and scores out."""
