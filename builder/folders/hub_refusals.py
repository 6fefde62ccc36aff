# SPDX-License-Identifier: Apache-2.0
"""Refusals of the Hugging Face Hub, as messages that say what to do.

huggingface_hub's errors are recognised by the names of their classes, as not all releases have a common base class.
"""

from __future__ import annotations

import errno

from ..errors import BuildError


def refusal(name: str, revision: str, error: Exception) -> BuildError | None:
    """The hub's refusal as one line; None where it was not reached."""
    kinds = {kind.__name__ for item in (error, error.__cause__) for kind in type(item).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "GatedRepoError" in kinds:
        return BuildError(
            f"{name}: is gated: accept its conditions on https://huggingface.co/{name}, and put a token of your "
            "account into HF_TOKEN, or log in with hf auth login"
        )
    if "RevisionNotFoundError" in kinds:
        return BuildError(
            f"{name}: has no revision {revision!r}; name a branch, tag or commit of "
            f"https://huggingface.co/{name}/commits, or leave --revision out"
        )
    if "RepositoryNotFoundError" in kinds or "HFValidationError" in kinds:
        return BuildError(
            f"{name}: no such file or folder here, and no such repository on the Hugging Face Hub, or a private one; "
            "check the name, and for private ones put a token into HF_TOKEN, or log in with hf auth login"
        )
    if status in (401, 403):
        return BuildError(
            f"{name}: the Hugging Face Hub does not take this user's token ({reason(error)}); put a token that may "
            "read the repository into HF_TOKEN, or log in with hf auth login"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
        return BuildError(
            f"{name}: huggingface_hub's cache cannot be written ({error.strerror}: {error.filename}); free space, or "
            "name another folder in HF_HOME"
        )
    return None


def reason(error: Exception) -> str:
    """The class of an error, or of its cause, and the first line of the message."""
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if type(error).__name__ == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def at(revision: str) -> str:
    """The revision that was asked for, as a part of a sentence."""
    return f" at revision {revision!r}" if revision else ""
