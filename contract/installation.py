# SPDX-License-Identifier: Apache-2.0
"""How this padfree was installed, and the command that adds an extra to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "padfree"


def install_command(*extras: str) -> str:
    """The command that installs extras into this environment, as it works here.

    An installation records where it came from (PEP 610). Extras come from there: from a checkout, by its path unless
    that is the current folder, or from a wheel or a repository; otherwise by padfree's name.

    Args:
        extras: names of pyproject.toml's optional dependencies.

    Returns:
        For example `pip install '.[trt]'`, `pip install '/home/me/padfree[trt]'` or `pip install 'padfree[trt]'`.
    """
    extras_text = f"[{','.join(extras)}]"
    origin = _origin()
    url = str(origin.get("url", ""))
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        requirement = f"{NAME}{extras_text} @ {vcs.get('vcs')}+{url}@{vcs.get('commit_id')}"
        return f"pip install {shlex.quote(requirement)}"
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if path is None or not path.exists():
        return f"pip install {shlex.quote(f'{NAME}{extras_text}')}"
    if not path.is_dir():
        return f"pip install {shlex.quote(f'{path}{extras_text}')}"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    folder = "." if _is_current(path) else str(path)
    return f"pip install {editable}{shlex.quote(f'{folder}{extras_text}')}"


@contextmanager
def naming_extra(module: str, extra: str) -> Iterator[None]:
    """For the imports of `module`: where a package of `extra` is missing, the error says how to install it.

    Raises:
        ModuleNotFoundError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or NAME).partition(".")[0] == NAME:
            raise
        message = f"{module} needs {error.name}, which is not installed: {install_command(extra)}"
        raise ModuleNotFoundError(message, name=error.name) from error


def _origin() -> dict[str, Any]:
    """Pip's record of where padfree came from; {} where there is none, as for packages of an index."""
    from importlib import metadata

    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _is_current(folder: Path) -> bool:
    try:
        return folder.samefile(Path.cwd())
    except OSError:
        return False
