# SPDX-License-Identifier: Apache-2.0
"""Which TensorRT a Triton server has, and whether it can load a plan.

A plan loads in the TensorRT that built it and in no other ("The engine plan file is not compatible with this version of
TensorRT, expecting library version 8.6.1.2 got 8.6.0.12", triton-inference-server/server issue 5812).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from padfree.builder.errors import BuildError

IMAGE = "nvcr.io/nvidia/tritonserver"
SAFE_RELEASE = "25.07"  # CVE-2025-23310, 23311 and 23319 are mended in it

# NGC release -> TensorRT of tritonserver:RELEASE-py3, from 10.0 on. docs/reference/triton-repositories.md ("Versions")
# says what shows each of them. The images of one month have one TensorRT (server issue 5812; its fourth number may
# differ, issue 5975), but for the trtllm images (server/docs/introduction/compatibility.md). The Dockerfile that
# padfree writes looks into the image and has the last word.
RELEASES: Mapping[str, str] = MappingProxyType(
    {
        "24.05": "10.0.1",
        "24.06": "10.1.0",
        "24.07": "10.2.0",
        "24.08": "10.3.0",
        "24.09": "10.4.0",
        "24.10": "10.5.0",
        "24.11": "10.6.0",
        "24.12": "10.7.0",
        "25.01": "10.8.0",
        "25.02": "10.8.0",
        "25.03": "10.9.0",
        "25.04": "10.9.0",
        "25.05": "10.10.0",
        "25.06": "10.11.0",
        "25.07": "10.11.0",
        "25.08": "10.13.2",
        "25.09": "10.13.3",
        "25.10": "10.13.3",
        "25.11": "10.14.1",
        "25.12": "10.14.1",
        "26.03": "10.16.0",
        "26.04": "10.16.1",
        "26.05": "10.16.1",
    }
)


@dataclass(frozen=True)
class Server:
    """A Triton server: its NGC release, None for one that is no NGC image, and its TensorRT, None where any will do."""

    release: str | None
    tensorrt: str | None

    @property
    def has_known_holes(self) -> bool:
        """Whether callers are known to be able to run code in it (docs/guide/operating.md)."""
        return self.release is not None and self.release < SAFE_RELEASE

    @property
    def image(self) -> str | None:
        """The container image, or None."""
        return None if self.release is None else f"{IMAGE}:{self.release}-py3"


def releases_with(tensorrt: str) -> list[str]:
    """The NGC releases whose server has this TensorRT, oldest first."""
    return [release for release, version in RELEASES.items() if _same(version, tensorrt)]


def server_for_plan(release: str | None, tensorrt: str | None, plan_tensorrt: str) -> Server:
    """The server that the tensorrt backend's plan is for, which must have the plan's TensorRT.

    Args:
        release: NGC release, such as "25.08", or None.
        tensorrt: the server's TensorRT, such as "10.6.0", or None to take it from the table of releases.
        plan_tensorrt: what built the plan.

    Raises:
        BuildError: neither is given, they contradict each other, the release is not in the table, or the server has
            another TensorRT than the plan.
    """
    fitting = releases_with(plan_tensorrt)
    fits = (
        f"--server {fitting[-1]}"
        if fitting
        else f"--server-tensorrt {plan_tensorrt} (no NGC release is known to have it)"
    )
    if release is None and tensorrt is None:
        raise BuildError(
            f"the plan was built with TensorRT {plan_tensorrt}, and the server needs the same: say which server it is "
            f"for, with --server RELEASE or --server-tensorrt VERSION; {fits} fits"
        )
    release_server = None if release is None else RELEASES.get(release)
    if release_server is not None and tensorrt is not None and not _same(release_server, tensorrt):
        raise BuildError(
            f"--server {release} has TensorRT {release_server}, but --server-tensorrt says {tensorrt}; leave "
            "--server-tensorrt out, or leave --server out for a server that is no NGC image"
        )
    server = tensorrt or release_server
    if server is None:
        raise BuildError(
            f"--server {release} is not in the table of NGC releases ({', '.join(RELEASES)}); add its TensorRT with "
            "--server-tensorrt, from NVIDIA's support matrix"
        )
    if not _same(server, plan_tensorrt):
        server_text = f"the server (NGC {release})" if release else "the server"
        raise BuildError(
            f"the plan was built with TensorRT {plan_tensorrt}, {server_text} has {server}: it would not load. Build "
            f"the plan again with TensorRT {server} (pip install 'tensorrt=={server}.*'), or take another server: "
            f"{fits}; or use --backend python, whose image gets TensorRT {plan_tensorrt} of its own"
        )
    return Server(release or (fitting[-1] if fitting else None), _patch(server))


def newest_with(tensorrt: str) -> str | None:
    """The newest NGC release whose server has this TensorRT; None: none is known."""
    fitting = releases_with(tensorrt)
    return fitting[-1] if fitting else None


def misfit(release: str | None, plan_tensorrt: str) -> str:
    """Why a plan would not load in the server of an NGC release; "" if it would, or if no release is named."""
    if release is None:
        return (
            "" if newest_with(plan_tensorrt) else f"no NGC release is known to have the plan's TensorRT {plan_tensorrt}"
        )
    server = RELEASES.get(release)
    if server is None:
        return f"padfree does not know the TensorRT of server {release}"
    if _same(server, plan_tensorrt):
        return ""
    return f"the plan was built with TensorRT {plan_tensorrt}, and server {release} has {server}"


def server_for_python(release: str | None, tensorrt: str | None, plan_tensorrt: str | None) -> Server:
    """The server of the python backend, which brings its own TensorRT.

    By default a release of the plan's time, whose CUDA the plan's machine has a driver for, else the newest known.

    Raises:
        BuildError: the server's TensorRT is given, which does not matter.
    """
    if tensorrt is not None:
        raise BuildError(
            f"--server-tensorrt {tensorrt} is for --backend tensorrt; the python backend's image gets the plan's own "
            "TensorRT, so leave it out"
        )
    fitting = releases_with(plan_tensorrt) if plan_tensorrt else []
    return Server(release or (fitting or list(RELEASES))[-1], None)


def _same(one: str, other: str) -> bool:
    return _patch(one) == _patch(other)


def _patch(version: str) -> str:
    """Major, minor and patch: a plan's metadata and the library's file name have no build number (the fourth)."""
    return ".".join(version.split(".")[:3])
