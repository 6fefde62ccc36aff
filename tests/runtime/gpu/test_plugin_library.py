# SPDX-License-Identifier: Apache-2.0
"""Finding the plugin library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders in place of the entries of padfree.__path__, as in an editable install."""
    monkeypatch.delenv(plugin_library.ENVIRONMENT_VARIABLE, raising=False)
    paths = [tmp_path / "source" / "lib", tmp_path / "site-packages" / "lib"]
    for path in paths:
        path.mkdir(parents=True)
    monkeypatch.setattr(plugin_library, "library_folders", lambda: paths)
    return paths


def test_every_installation_folder_is_searched(folders: list[Path]) -> None:
    library = folders[1] / "libpadfree.so"
    library.touch()
    assert plugin_library.find() == library.resolve()


def test_the_environment_goes_first(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders[0] / "libpadfree.so").touch()
    own = tmp_path / "own.so"
    own.touch()
    monkeypatch.setenv("PADFREE_LIBRARY", str(own))
    assert plugin_library.find() == own.resolve()


def test_a_wrong_environment_variable_is_not_passed_over(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders[0] / "libpadfree.so").touch()
    monkeypatch.setenv("PADFREE_LIBRARY", "/nowhere/libpadfree.so")
    with pytest.raises(SessionError, match=r"PADFREE_LIBRARY=/nowhere/libpadfree\.so is no file"):
        plugin_library.find()


def test_a_missing_library_names_the_folders_searched(folders: list[Path]) -> None:
    with pytest.raises(SessionError) as caught:
        plugin_library.find()
    assert all(str(folder) in str(caught.value) for folder in folders)
    assert "padfree doctor" in str(caught.value)


def test_what_the_build_missed_is_repeated(folders: list[Path]) -> None:
    info = {"built": False, "missing": ["no C++ compiler"], "next_steps": ["apt-get install g++"]}
    (folders[1] / "build_info.json").write_text(json.dumps(info))
    with pytest.raises(SessionError, match=r"no C\+\+ compiler\. Next step: apt-get install g\+\+, then install"):
        plugin_library.find()


def test_the_package_folders_end_in_lib() -> None:
    folders = plugin_library.library_folders()
    assert {folder.name for folder in folders} == {"lib"}
    assert any(folder.parent.name == "padfree" for folder in folders)  # all of them, except in an editable install


@pytest.mark.needs_tensorrt
def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    import tensorrt as trt

    if plugin_library.is_loaded(trt.get_plugin_registry()):
        pytest.skip("the plugins are loaded in this process already")
    path = tmp_path / "libpadfree.so"
    path.write_bytes(b"no library")
    with pytest.raises(SessionError, match=r"libpadfree\.so"):
        plugin_library.load(path)


@pytest.mark.needs_tensorrt
def test_loading_twice_changes_nothing() -> None:
    import tensorrt as trt

    try:
        plugin_library.find()
    except SessionError as error:
        pytest.skip(str(error))
    plugin_library.load()
    names = sorted(creator.name for creator in trt.get_plugin_registry().all_creators)
    plugin_library.load()
    assert sorted(creator.name for creator in trt.get_plugin_registry().all_creators) == names
    assert "PadfreeAttention" in names


HERE = "from padfree.runtime import plugin_library; print(*plugin_library.library_folders(), sep='\\n')"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (["-c", HERE], None),
        (["-m", "looks"], None),
        (["-c", HERE], "{here}"),
        (["-c", f"import padfree.runtime, os; os.chdir('/'); {HERE}"], ""),
    ],
    ids=["-c", "-m", "PYTHONPATH", "left later"],
)
def test_the_current_folder_gives_no_library(tmp_path: Path, options: list[str], path: str | None) -> None:
    """Python starts in a folder that happens to have padfree/lib/libpadfree.so."""
    (tmp_path / "looks.py").write_text(HERE)
    library = tmp_path / "padfree" / "lib" / "libpadfree.so"
    library.parent.mkdir(parents=True)
    library.touch()
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([path.format(here=tmp_path), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    folders = done.stdout.splitlines()
    assert Path(folders[0]) == Path(plugin_library.__file__).parents[2] / "lib"
    assert not [folder for folder in folders if Path(folder).is_relative_to(tmp_path)]
    assert set(map(str, plugin_library.library_folders())) <= set(folders)
