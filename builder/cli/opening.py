# SPDX-License-Identifier: Apache-2.0
"""Opens the model of commands that rewrite, as their options say."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import fixed_inputs, head_options

if TYPE_CHECKING:
    from padfree.builder.folders.source import Source


def opened_model(
    model: Path, arguments: argparse.Namespace, say: Callable[[str], None], **options: Any
) -> AbstractContextManager[Source]:
    """The model as one file, with the options that add_head_options and add_mask_option add.

    Raises:
        BuildError, RewriteError: as `padfree.builder.folders.source.opened`, which takes more `options`.
    """
    from padfree.builder.folders.source import opened

    return opened(
        model,
        head_options(arguments),
        mask=arguments.mask,
        bindings=fixed_inputs(arguments),
        revision=arguments.revision,
        say=say,
        **options,
    )
