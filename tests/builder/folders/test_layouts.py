# SPDX-License-Identifier: Apache-2.0
"""The layouts of repositories, of today's releases and of older ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from padfree.builder import cli
from padfree.builder.folders.folder import describe, read_folder
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.builder.folders.tokenizer import folder_tokenizer
from padfree.runtime.texts import tokenizer_path
from tokenizers import Tokenizer

from tests.support.folders import DEMO_DATA, TOKENIZER, write_folder, write_json

MEAN = ("Pooling", {"pooling_mode": "mean"})


def test_the_encoder_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN], max_seq_length=64)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json", "onnx"):
        shutil.move(folder / name, inner / name)
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [{**modules[0], "path": "0_Transformer"}, *modules[1:]])
    actual = read_folder(folder)
    assert (actual.encoder, actual.text.max_length) == (inner, 64)
    assert actual.onnx.choice == inner / "onnx" / "model.onnx"
    assert actual.tokenizer == inner / "tokenizer.json"


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("sentence_transformers.base.modules.transformer.Transformer", True),
        ("sentence_transformers.sparse_encoder.models.MLMTransformer", True),
        ("custom_st.Transformer", True),  # beside an ONNX file its code does not matter
        ("sentence_transformers.models.StaticEmbedding", False),
    ],
)
def test_an_encoder_has_many_names(kind: str, known: bool, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [{**modules[0], "type": kind}, *modules[1:]])
    if known:
        assert read_folder(folder).head.pooling == ("mean",)
    else:
        with pytest.raises(Exception, match="StaticEmbedding, which padfree does not write into the graph"):
            read_folder(folder)


def test_weights_do_not_matter_beside_an_onnx_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert read_folder(folder).weights == ()


def test_the_encoder_of_t5_is_no_decoder(tmp_path: Path) -> None:
    config = {"model_type": "t5", "architectures": ["T5EncoderModel"], "is_encoder_decoder": True}
    assert read_folder(write_folder(tmp_path / "model", config=config)).task == "feature-extraction"


def test_the_longest_text_is_the_tokenizers_where_nothing_else_says_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert read_folder(folder).text.max_length == 512
    write_json(folder / "tokenizer_config.json", {"model_max_length": 128})
    assert read_folder(folder).text.max_length == 128
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1000000000000000019884624838656})
    assert read_folder(folder).text.max_length == 512


def test_prompts_are_kept_where_pooling_leaves_them_out(tmp_path: Path) -> None:
    modules = [("Pooling", {"pooling_mode": "mean", "include_prompt": False})]
    folder = read_folder(write_folder(tmp_path / "model", modules=modules, settings={"prompts": {"query": "find: "}}))
    assert folder.text.prompts == {"query": "find: "}
    assert not folder.text.pools_prompt
    assert read_folder(write_folder(tmp_path / "all", modules=[MEAN])).text.pools_prompt


def test_lower_case_becomes_a_part_of_the_tokenizer(tmp_path: Path) -> None:
    cased = json.loads(TOKENIZER.read_text("utf-8"))
    cased["normalizer"] = None
    tokenizer = write_json(tmp_path / "cased.json", cased)
    folder = write_folder(tmp_path / "model", modules=[MEAN], tokenizer=tokenizer)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": True})
    actual = folder_tokenizer(read_folder(folder))
    assert actual is not None
    small, plain = actual.tokenizer(), Tokenizer.from_file(str(tokenizer))
    assert small.encode("THE Cat").ids == plain.encode("the cat").ids != plain.encode("THE Cat").ids
    shutil.copy(TOKENIZER, folder / "tokenizer.json")  # lowercases texts by itself
    again = folder_tokenizer(read_folder(folder))
    assert again is not None
    assert again.content == TOKENIZER.read_bytes()


def test_the_task_follows_the_head(tmp_path: Path) -> None:
    pooled = read_folder(write_folder(tmp_path / "pooled", modules=[MEAN]))
    plain = read_folder(write_folder(tmp_path / "plain"))
    none, mean = HeadOptions(pooling=("none",)), HeadOptions(pooling=("mean",))
    assert describe(pooled.text, pooled.task, none.apply(pooled.head)).task == "feature-extraction"
    assert describe(plain.text, plain.task, mean.apply(plain.head)).task == "sentence-embedding"


def test_a_folder_without_a_tokenizer_gives_a_model_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN], tokenizer=None)
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    assert "has no tokenizer.json; texts will need --tokenizer" in capsys.readouterr().err
    assert not tokenizer_path(packed).exists()
    command = ["run", str(packed), "--input", str(DEMO_DATA / "texts.txt"), "-o", str(tmp_path / "out.npz")]
    assert cli.main(command) == 1
    assert "keeps no tokenizer" in capsys.readouterr().err


@pytest.mark.needs_torch
def test_a_vocabulary_becomes_a_tokenizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN], tokenizer=None)
    vocabulary = json.loads(TOKENIZER.read_text("utf-8"))["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", "utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    with opened(folder) as source:
        tokenizer = Tokenizer.from_file(str(tokenizer_path(source.path)))
    assert tokenizer.encode("The cat sat.").ids == Tokenizer.from_file(str(TOKENIZER)).encode("The cat sat.").ids
