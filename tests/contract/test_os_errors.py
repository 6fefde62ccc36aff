# SPDX-License-Identifier: Apache-2.0
"""What is said where the system does not let a file be written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from padfree.contract.os_errors import describe_os_error, errors_of, room_advice

FULL = (errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_folder_of_temporary_files_is_another_than_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert room_advice(tmp_path / "model.onnx") == f"free space in '{tmp_path}' or choose another folder"
    with tempfile.TemporaryDirectory(prefix="padfree-packed-") as folder:
        file = Path(folder) / "onnx" / "model.onnx"
        advice = room_advice(file)
        assert describe_os_error(OSError(*FULL, str(file))) == f"{file}: {FULL[1]}; {advice}"
    assert advice == f"free space in '{tmp_path}', where temporary files go, or set TMPDIR to another folder"


def test_a_file_that_is_open_is_named(tmp_path: Path) -> None:
    """The system's error of writing to an open file has no name."""
    with pytest.raises(OSError, match=FULL[1]) as raised, errors_of(tmp_path / "outer"), errors_of(tmp_path / "inner"):
        raise OSError(*FULL)
    advice = f"{FULL[1]}; free space there, or choose another folder"
    assert describe_os_error(raised.value) == f"{tmp_path / 'inner'}: {advice}"
    assert describe_os_error(OSError(*FULL)) == advice
