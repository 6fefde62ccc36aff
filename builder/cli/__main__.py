# SPDX-License-Identifier: Apache-2.0
"""`python -m padfree.builder.cli`: the `padfree` command where its script is not on PATH."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
