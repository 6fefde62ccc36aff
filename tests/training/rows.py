# SPDX-License-Identifier: Apache-2.0
"""The dataset of the tests with two processes: the number of rows, their lengths, and the size of batches."""

from __future__ import annotations

import numpy as np

ROWS, BATCH, EPOCHS, SEED = 103, 4, 2, 4
LENGTHS = np.random.default_rng(0).integers(5, 60, ROWS)
