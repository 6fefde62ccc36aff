# SPDX-License-Identifier: Apache-2.0
"""The command that adds an extra, for every way to install padfree."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from padfree.contract.installation import install_command, naming_extra

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("contract", "onnx_tools", "builder", "runtime", "serving", "training", "bulk", "integrations", "package")


class Distribution:
    """A distribution with pip's record of its origin."""

    def __init__(self, origin: object) -> None:
        self.text = origin if isinstance(origin, str) or origin is None else json.dumps(origin)

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution(origin))


def folder_origin(path: Path, **dir_info: Any) -> dict[str, Any]:
    return {"url": path.as_uri(), "dir_info": dir_info}


def test_from_an_index_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, None)
    assert install_command("trt") == "pip install 'padfree[trt]'"
    assert install_command("trt", "export") == "pip install 'padfree[trt,export]'"


def test_from_a_checkout_it_is_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "my padfree"
    checkout.mkdir()
    installed_from(monkeypatch, folder_origin(checkout))
    command = install_command("hub")
    assert shlex.split(command) == ["pip", "install", f"{checkout}[hub]"]
    monkeypatch.chdir(checkout)
    assert install_command("hub") == "pip install '.[hub]'"
    installed_from(monkeypatch, folder_origin(checkout, editable=True))
    assert install_command("hub") == "pip install -e '.[hub]'"


def test_from_a_wheel_it_is_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "padfree-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    wheel.touch()
    installed_from(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("serve") == f"pip install '{wheel}[serve]'"


def test_from_a_repository_it_is_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"vcs": "git", "commit_id": "5bb858e86c16"}
    installed_from(monkeypatch, {"url": "https://example.org/padfree.git", "vcs_info": info})
    assert install_command("ray") == "pip install 'padfree[ray] @ git+https://example.org/padfree.git@5bb858e86c16'"


@pytest.mark.parametrize("origin", ["no json", "[]", {"url": "file:///nowhere/padfree", "dir_info": {}}, {}])
def test_what_is_gone_or_damaged_is_passed_over(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    installed_from(monkeypatch, origin)
    assert install_command("trt") == "pip install 'padfree[trt]'"


def test_without_an_installation_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("trt") == "pip install 'padfree[trt]'"


def test_a_missing_package_is_named_with_its_extra() -> None:
    named = r"padfree\.torch needs nothing_such, .* pip install .*\[torch\]"
    with pytest.raises(ModuleNotFoundError, match=named) as caught, naming_extra("padfree.torch", "torch"):
        import nothing_such.part  # type: ignore[import-not-found]  # noqa: F401
    assert caught.value.name == "nothing_such"
    ours = r"^No module named 'padfree\.nothing_such'$"
    with pytest.raises(ModuleNotFoundError, match=ours), naming_extra("padfree.torch", "torch"):
        import padfree.nothing_such  # type: ignore[import-not-found]  # noqa: F401


def test_messages_name_extras_through_it_alone() -> None:
    """No other text in the packages names an extra, and all extras that are named exist."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = set(re.findall(r"^([\w-]+) = \[$", project.split("[project.optional-dependencies]")[1], re.MULTILINE))
    named: set[str] = set()
    for path in [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]:
        text = path.read_text("utf-8")
        named |= set(re.findall(r"install_command\([\"']([\w-]+)[\"']\)", text))
        if path.name != "installation.py":
            assert not re.search(r"padfree\[|'\.\[", text), path
    assert {"trt", "export", "serve", "triton", "bench"} <= named <= extras
