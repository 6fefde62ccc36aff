# SPDX-License-Identifier: Apache-2.0
"""Commands of pages without a test of their own run in the page's order, as far as they do without a GPU."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import onnx
import pytest
from padfree.builder import cli

from tests.support.folders import DEMO_DATA, write_folder, write_small_tokenizer
from tests.support.pages import page
from tests.support.quantizers import Quantizer
from tests.support.scorers import TEXT, write_scorer
from tests.support.tiny_folders import read, write_reference
from tests.support.tour import blocks, commands, write_start

RUN = {
    "quick-start": ["inspect", "optimize", "run", "run"],
    "choosing": ["inspect"],
    "fp8": ["optimize", "optimize", "inspect"],
    "report": ["inspect", "inspect", "optimize"],
    "bench": ["bench", "bench"],
}
"""Page -> the commands that run here; others build or run a plan, serve, compare, measure a GPU, or run elsewhere."""
ELSEWHERE = ("demo", "embed")
"""These run in `.ci/run`, and in the test of the page about bulk work."""
MODULES = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]


def here(words: list[str]) -> list[str] | None:
    """The arguments of a command as they run on a machine without a GPU; None if it cannot run there.

    The quick start says that the rewritten file may stand in for its plan.
    """
    arguments = [word.replace("minilm.plan", "minilm.onnx") for word in words[1:]]
    if arguments[0] in ("build", "serve", "compare", *ELSEWHERE) or any(word.endswith(".plan") for word in arguments):
        return None
    if arguments[0] == "bench" and not {"--cpu", "list"} & set(arguments):
        return None
    return arguments


def write_cross_encoder(folder: Path) -> None:
    """Writes a small cross-encoder whose words are word0, word1, ..."""
    write_reference(read("bert_pairs"), folder)
    write_small_tokenizer(folder / "tokenizer.json", 64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages start from: a folder under both its names, an exported file, a rewritten one, and texts."""
    write_start(tmp_path)
    write_folder(tmp_path / "all-MiniLM-L6-v2", modules=MODULES)
    write_cross_encoder(tmp_path / "ms-marco-MiniLM-L6-v2")
    pairs = [{"query": f"word{n % 9} word3", "document": f"word5 word{n % 11}"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["optimize", "model.onnx", "-o", "packed.onnx", "--no-verify"]) == 0
    return tmp_path


@pytest.mark.parametrize("name", RUN)
def test_commands_of_the_page_run(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = []
    for words in commands("\n".join(blocks(page(name), "sh"))):
        arguments = here(words) if words[0] == "padfree" else None
        if arguments is not None:
            assert cli.main(arguments) == 0, f"{shlex.join(words)}: {capsys.readouterr().err}"
            ran.append(arguments[0])
    assert ran == RUN[name]
    for source in blocks(page(name), "python"):
        exec(compile(source, f"{name}.md", "exec"), {})
    assert (folder / "texts.txt").exists()


COMMAND_LINE = {
    "cli-build": ["padfree optimize model.onnx -o packed.onnx --precision fp16 --strict --report report.json"],
    "cli": [
        "padfree optimize model.onnx -o packed.onnx",
        "padfree run model.plan --input batch.jsonl -o out.npz",
        "padfree run packed.onnx --input texts.txt --tokenizer tokenizer.json -o out.npz",
        "padfree run minilm.plan --text 'how warm is it today' --text 'a cat' -o vectors.npz",
        "padfree inspect model.plan",
        "padfree inspect model.onnx --verbose --max-length 512 --mean-length 120",
        "padfree costs model.plan -o costs.json --lengths 16,64,256 --batches 1,4,16 --repeats 20",
        "padfree simulate costs.json --rates 500,1000 --plot policies.svg",
        "padfree doctor",
    ],
    "polygraphy": ["padfree compare model.onnx packed.onnx --emit-polygraphy comparison"],
    "rerankers": ["padfree optimize my-decoder -o reranker.onnx --scores yes,no --template question.txt"],
    "quantized-files": [
        (
            "padfree optimize quantized.onnx -o packed_fp8.onnx --precision fp8 --calibrate texts.txt "
            "--tokenizer tokenizer.json"
        ),
        "padfree optimize minilm.int8.onnx -o packed_fp16.onnx --precision fp16",
        "padfree compare minilm.int8.onnx packed_fp16.onnx --data texts.txt --tokenizer tokenizer.json --truncate",
    ],
}
"""Page -> its example commands that run here; the rewritten file replaces the plan, and measurements are short."""
ON_A_CPU = {
    "model.plan": "packed.onnx",
    "minilm.plan": "minilm.onnx",
    "--repeats 20": "--repeats 1",
    "--rates 500,1000": "--rates 500,1000 --seconds 1",
}


@pytest.mark.parametrize("name", COMMAND_LINE)
def test_examples_of_the_command_line_run(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib: pip install '.[bench]'")
    shutil.copy(DEMO_DATA / "tokenizer.json", folder / "tokenizer.json")
    (folder / "batch.jsonl").write_text('{"input_ids": [2, 7, 3]}\n{"input_ids": [2, 3]}\n', encoding="utf-8")
    assert cli.main(["optimize", "all-MiniLM-L6-v2", "-o", "minilm.onnx", "--no-verify"]) == 0
    write_scorer("llama", folder / "my-decoder")
    (folder / "question.txt").write_text(TEXT, encoding="utf-8")
    for kind, file in (("e4m3", "quantized.onnx"), ("int8", "minilm.int8.onnx")):
        onnx.save_model(Quantizer(kind, "stored").apply(onnx.load(folder / "model.onnx")), folder / file)
    text = page(name).read_text("utf-8")
    for command in COMMAND_LINE[name]:
        assert command in text
        for old, new in ON_A_CPU.items():
            command = command.replace(old, new)
        assert cli.main(shlex.split(command)[1:]) == 0, f"{command}: {capsys.readouterr().err}"
