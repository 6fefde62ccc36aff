# SPDX-License-Identifier: Apache-2.0
"""`padfree build` of several models, precisions and profiles: one start of TensorRT, a plan for each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from padfree.builder.cli import main
from padfree.builder.engine.phases import BUILDING, COMPARING, REFERENCE, STARTING, WAITING
from padfree.runtime.plan_files import open_plan

from tests.support.fake_builder import FakeBuilder, fake_builder

ModelWriter = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> type[FakeBuilder]:
    return fake_builder(monkeypatch)


@pytest.fixture
def models(packed_model: ModelWriter, tmp_path: Path) -> list[str]:
    first = packed_model()
    second = tmp_path / "other.onnx"
    shutil.copy(first, second)
    return [str(first), str(second)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def seconds(plan: Path) -> set[str]:
    return set(json.loads(Path(f"{plan}.json").read_text())["engine"]["build_seconds"])


def test_models_share_one_start(builder: type[FakeBuilder], models: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "plans"
    assert main(["build", *models, "-o", str(out), "--max-batch", "3"]) == 0
    assert builder.starts == 1
    assert names_in(out) == ["other.plan", "other.plan.json", "packed.plan", "packed.plan.json"]
    assert (out / "packed.plan").read_bytes() == b"plan 1"
    for name in ("packed.plan", "other.plan"):
        engine = open_plan(out / name).engine
        assert engine is not None
        assert engine.profile.max_batch == 3
    assert seconds(out / "packed.plan") == {STARTING, WAITING, BUILDING, REFERENCE, COMPARING}
    assert seconds(out / "other.plan") == {WAITING, BUILDING, REFERENCE, COMPARING}, (
        "the second engine waited for no start"
    )
    said = capsys.readouterr().out.replace("\n", "")
    assert said.count("wrote") == 2


def test_profiles_become_engines(builder: type[FakeBuilder], models: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plans"
    options = [
        "--max-batch",
        "1",
        "--max-batch",
        "4",
        "--max-seq-len",
        "16",
        "--max-tokens",
        "16",
        "--max-tokens",
        "40",
    ]
    assert main(["build", models[0], "-o", str(out), *options]) == 0
    assert builder.starts == 1
    assert [name for name in names_in(out) if name.endswith(".plan")] == [
        "packed-b1-s16-t16.plan",
        "packed-b4-s16-t40.plan",
    ]
    assert [(sizes["seq_lens"], sizes["input_ids"]) for sizes in builder.built] == [((1,), (16,)), ((4,), (40,))]


def test_precisions_become_engines(builder: type[FakeBuilder], models: list[str], tmp_path: Path) -> None:
    out = tmp_path / "plans"
    out.mkdir()
    assert main(["build", models[0], "-o", str(out), "--precision", "fp32", "--precision", "fp16"]) == 1
    # The model was rewritten to fp32: the engine that came before the refusal stays.
    assert names_in(out) == ["packed-fp32.plan", "packed-fp32.plan.json"]
    assert builder.starts == 1


def test_one_engine_goes_to_a_file(builder: type[FakeBuilder], models: list[str], tmp_path: Path) -> None:
    assert main(["build", models[0], "-o", str(tmp_path / "one.plan"), "--precision", "fp32"]) == 0
    assert open_plan(tmp_path / "one.plan").engine is not None
    assert builder.starts == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-batch", "1", "--max-batch", "2", *(3 * ["--max-seq-len", "8"])], "--max-batch is given 2 times"),
        (["{model}"], "is the file that -o writes"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    builder: type[FakeBuilder],
    models: list[str],
    tmp_path: Path,
    capsys: Capture,
    arguments: list[str],
    message: str,
) -> None:
    out = tmp_path / "plans"
    filled = [argument.format(model=models[0]) for argument in arguments]
    assert main(["build", *models, *filled, "-o", str(out)]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert (builder.starts, out.exists()) == (0, False)


def test_several_engines_need_a_folder(
    builder: type[FakeBuilder], models: list[str], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "file.plan"
    file.write_bytes(b"mine")
    assert main(["build", *models, "-o", str(file)]) == 1
    assert "is a file, and 2 engines need a folder" in " ".join(capsys.readouterr().err.split())
    assert main(["build", *models, "-o", str(tmp_path / "nowhere" / "plans")]) == 1
    assert "mkdir -p" in capsys.readouterr().err
    assert (file.read_bytes(), builder.starts) == (b"mine", 0)


def test_a_failure_names_the_engine_and_keeps_those_before_it(
    builder: type[FakeBuilder], models: list[str], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "plans"
    builder.fails_at = 2
    assert main(["build", *models, "-o", str(out)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.index("other.plan: from ") < said.index("TensorRT built no engine")
    assert names_in(out) == ["packed.plan", "packed.plan.json"]


def test_the_folder_goes_when_nothing_came(builder: type[FakeBuilder], models: list[str], tmp_path: Path) -> None:
    builder.fails_at = 1
    assert main(["build", *models, "-o", str(tmp_path / "plans")]) == 1
    assert not (tmp_path / "plans").exists()
