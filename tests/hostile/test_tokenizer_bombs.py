# SPDX-License-Identifier: Apache-2.0
"""A tokenizer whose pattern explodes: everywhere one text gets an error message, and the others get their tokens."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli
from padfree.runtime.triton.answers import Failure
from tokenizers import Regex, Tokenizer, pre_tokenizers

from tests.support.folders import TOKENIZER, WIDTH, write_folder, write_json

BOMB = "a" * 5000 + "!"
GIVES_UP = "the tokenizer gives up (Onig"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("bomb")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    explodes = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([explodes, pre_tokenizers.BertPreTokenizer()])
    tokenizer.save(str(scratch / "bomb.json"))
    chain = {"pooling_mode": "mean", "embedding_dimension": WIDTH}
    folder = write_folder(scratch / "model", tokenizer=scratch / "bomb.json", modules=[("Pooling", chain)])
    names = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
    )
    assert cli.main(["optimize", str(folder), "-o", str(scratch / "packed.onnx")]) == 0
    return scratch / "packed.onnx"


@pytest.mark.slow
def test_run_says_which_text(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.txt"
    source.write_text(f"a cat\n{BOMB}\n")
    assert cli.main(["run", str(packed), "--input", str(source), "-o", str(tmp_path / "out.npz")]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("padfree: error: ")]
    assert f"text 1: {GIVES_UP}" in line
    assert not (tmp_path / "out.npz").exists()


def test_embed_goes_on(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from padfree.bulk import Request

    from tests.support.bulk_jobs import run_here

    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a cat", BOMB, "rain")))
    finished = run_here(Request([str(tmp_path / "in.jsonl")], str(tmp_path / "out"), packed))
    assert (finished.report.texts, sum(finished.report.bad.values())) == (2, 1)
    (record,) = map(json.loads, (tmp_path / "out" / "_bad" / "part-000000.jsonl").read_text().splitlines())
    assert record["row"] == 1
    assert GIVES_UP in record["reason"]


def test_triton_refuses_one_request(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("tritonclient.grpc")
    from padfree.builder.triton import ServingOptions, write_repository
    from padfree.builder.triton.config import read_text
    from padfree.runtime.triton.answers import TritonRequest
    from padfree.runtime.triton.parameters import TokenizerParameters
    from padfree.runtime.triton.texts import TextTokenizer

    write_repository(packed, tmp_path / "models", ServingOptions("m", server="24.11"))
    folder = tmp_path / "models" / "m_tokenizer"
    given = {
        name: {"string_value": value.string_value}
        for name, value in read_text(folder / "config.pbtxt").parameters.items()
    }
    parameters = TokenizerParameters.from_config({"parameters": given})
    tokenizer = TextTokenizer(folder / "1" / parameters.tokenizer, parameters)
    tensors = [{"text": np.array([[text.encode()]], object)} for text in ("a cat", BOMB, "rain")]
    requests = [tokenizer.read(TritonRequest(each, ["input_ids"])) for each in tensors]
    first, second, third = tokenizer.answer(requests)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert isinstance(second, Failure)
    assert GIVES_UP in str(second)


@pytest.mark.slow
def test_serve_refuses_one_request(packed: Path) -> None:
    pytest.importorskip("starlette")
    from tests.support.http_requests import post
    from tests.support.served_models import Server

    with Server(packed, "--processes", "1") as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: post(server, "/embed", inputs=[text]), ("a cat", BOMB, "rain", "a")))
    assert [status for status, _ in answers] == [200, 422, 200, 200]
    assert GIVES_UP in json.dumps(answers[1][1])
