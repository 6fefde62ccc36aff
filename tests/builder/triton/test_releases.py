# SPDX-License-Identifier: Apache-2.0
"""Which server a plan is for: the release's TensorRT must be the plan's."""

from __future__ import annotations

import pytest
from padfree.builder import BuildError
from padfree.builder.triton.releases import RELEASES, Server, releases_with, server_for_plan, server_for_python


@pytest.mark.parametrize(
    ("release", "tensorrt", "expected"),
    [
        ("24.11", None, Server("24.11", "10.6.0")),
        ("24.11", "10.6.0.26", Server("24.11", "10.6.0")),
        (None, "10.6.0", Server("24.11", "10.6.0")),
        ("99.01", "10.6.0", Server("99.01", "10.6.0")),  # newer than the table
    ],
)
def test_a_server_that_fits(release: str | None, tensorrt: str | None, expected: Server) -> None:
    assert server_for_plan(release, tensorrt, "10.6.0") == expected


def test_a_server_that_is_no_ngc_image() -> None:
    server = server_for_plan(None, "10.12.0", "10.12.0")
    assert server == Server(None, "10.12.0")
    assert server.image is None


@pytest.mark.parametrize(
    ("release", "tensorrt", "parts"),
    [
        (
            None,
            None,
            ["built with TensorRT 10.6.0", "--server RELEASE or --server-tensorrt VERSION", "--server 24.11 fits"],
        ),
        (
            "25.03",
            None,
            ["TensorRT 10.6.0", "(NGC 25.03) has 10.9.0", "tensorrt==10.9.0.*", "--server 24.11", "--backend python"],
        ),
        (None, "10.7.0", ["TensorRT 10.6.0", "the server has 10.7.0"]),
        ("24.11", "10.7.0", ["--server 24.11 has TensorRT 10.6.0, but --server-tensorrt says 10.7.0"]),
        ("99.01", None, ["--server 99.01 is not in the table of NGC releases (24.05, 24.06", "--server-tensorrt"]),
    ],
)
def test_a_server_that_does_not_fit(release: str | None, tensorrt: str | None, parts: list[str]) -> None:
    with pytest.raises(BuildError) as caught:
        server_for_plan(release, tensorrt, "10.6.0")
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_plan_of_no_known_release_is_named() -> None:
    with pytest.raises(BuildError, match=r"--server-tensorrt 10\.15\.1 \(no NGC release is known to have it\) fits"):
        server_for_plan(None, None, "10.15.1")


def test_the_python_backend_brings_its_own_tensorrt() -> None:
    assert server_for_python("25.03", None, "10.6.0") == Server("25.03", None)
    assert server_for_python(None, None, "10.6.0") == Server("24.11", None)
    for unknown in ("10.12.0", None):
        assert server_for_python(None, None, unknown) == Server(max(RELEASES), None)
    with pytest.raises(BuildError, match=r"--server-tensorrt 10\.6\.0 is for --backend tensorrt"):
        server_for_python(None, "10.6.0", "10.6.0")


def test_the_table() -> None:
    assert list(RELEASES) == sorted(RELEASES)
    versions = [tuple(int(part) for part in version.split(".")) for version in RELEASES.values()]
    assert versions == sorted(versions)
    assert releases_with("10.9.0.34") == ["25.03", "25.04"]
