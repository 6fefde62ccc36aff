# SPDX-License-Identifier: Apache-2.0
"""`python -m padfree`: the `padfree` command where its script is not on PATH."""

import sys

from padfree.builder.cli import main

if __name__ == "__main__":
    sys.exit(main())
