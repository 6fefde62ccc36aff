# SPDX-License-Identifier: Apache-2.0
"""Folders of sentence-transformers give the sentence vectors that NumPy makes from the encoder's own rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from padfree.builder import cli
from padfree.builder.folders.head import POOLINGS
from padfree.builder.folders.weights import read_tensor
from padfree.runtime import Session
from padfree.runtime.texts import TextReader, tokenizer_path
from tokenizers import Tokenizer

from tests.support.folders import ENCODER, POSITIONS, TOKENIZER, WIDTH, pool, write_dense, write_folder

Array = npt.NDArray[Any]

TEXTS = (
    "the cat sat on the mat",
    "a",
    "",
    "rain, rain, and more of it: it rained the whole day and the night after it",
)
TOLERANCE = 2e-6  # for numbers near 1, after two layers in float32
LEGACY = {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens",
          "max": "pooling_mode_max_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
          "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens"}  # fmt: skip


def normalize(vector: Array) -> Array:
    result: Array = vector / np.linalg.norm(vector)
    return result


def rows_of(request: Mapping[str, list[list[int]]]) -> list[Array]:
    """The encoder's own rows [len, E] of every text, in onnxruntime, one text at a time."""
    session = ort.InferenceSession(str(ENCODER), providers=["CPUExecutionProvider"])
    results = []
    for ids, types in zip(request["input_ids"], request["token_type_ids"], strict=True):
        feeds = {"input_ids": ids, "token_type_ids": types, "attention_mask": [1] * len(ids)}
        arrays = {name: np.asarray([values], np.int64) for name, values in feeds.items()}
        results.append(session.run(["last_hidden_state"], arrays)[0][0])
    return results


def vectors(folder: Path, tmp_path: Path, *options: str) -> tuple[Array, list[Array]]:
    """The vectors that a folder's packed model gives for TEXTS, and the rows that they should come from."""
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed), "--strict", *options]) == 0
    with Session(packed) as session:
        assert [item.name for item in session.metadata.outputs] == ["sentence_embedding"]
        request = TextReader(packed, session.metadata).read(TEXTS).request
        return np.stack(session.run(request)["sentence_embedding"]), rows_of(request)


@pytest.mark.parametrize(("mode", "form"), [*((mode, "legacy") for mode in POOLINGS), ("weightedmean", "names")])
def test_a_way_of_pooling(mode: str, form: str, tmp_path: Path) -> None:
    config = {LEGACY[mode]: True} if form == "legacy" else {"pooling_mode": mode}
    if form == "legacy" and mode != "mean":
        config["pooling_mode_mean_tokens"] = False
    folder = write_folder(tmp_path / "model", modules=[("Pooling", config), ("Normalize", {})])
    actual, rows = vectors(folder, tmp_path)
    np.testing.assert_allclose(actual, [normalize(pool(row, mode)) for row in rows], atol=TOLERANCE)


def test_several_poolings_are_joined_in_their_order(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[("Pooling", {"pooling_mode": ["cls", "mean", "max"]})])
    actual, rows = vectors(folder, tmp_path)
    wanted = [np.concatenate([pool(row, mode) for mode in ("cls", "mean", "max")]) for row in rows]
    np.testing.assert_allclose(actual, wanted, atol=10 * TOLERANCE)


def test_dense_and_normalize_follow(tmp_path: Path) -> None:
    modules = [
        ("Pooling", {"pooling_mode": "mean"}),
        ("Dense", {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}),
        ("Dense", {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}),
        ("Normalize", {}),
    ]
    folder = write_folder(tmp_path / "model", modules=modules)
    write_dense(folder, 2, 32, WIDTH)
    write_dense(folder, 3, 16, 32, bias=False, seed=1)
    actual, rows = vectors(folder, tmp_path)
    first, bias = (
        read_tensor(folder / "2_Dense" / "model.safetensors", f"linear.{name}") for name in ("weight", "bias")
    )
    second = read_tensor(folder / "3_Dense" / "model.safetensors", "linear.weight")
    wanted = [normalize(second @ np.tanh(first @ pool(row, "mean") + bias)) for row in rows]
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


def test_options_replace_what_the_folder_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})])
    actual, rows = vectors(folder, tmp_path, "--pooling", "cls,max", "--no-normalize")
    wanted = [np.concatenate([pool(row, "cls"), pool(row, "max")]) for row in rows]
    np.testing.assert_allclose(actual, wanted, atol=10 * TOLERANCE)


def test_an_exported_file_is_pooled_by_hand(tmp_path: Path) -> None:
    packed = tmp_path / "packed.onnx"
    arguments = ["optimize", str(ENCODER), "-o", str(packed), "--pooling", "mean", "--normalize"]
    assert cli.main([*arguments, "--outputs", "sentence_embedding,last_hidden_state"]) == 0
    with Session(packed) as session:
        results = session.run([[2, 7, 8, 3], [2, 3]])
    for rows, vector in zip(results["last_hidden_state"], results["sentence_embedding"], strict=True):
        np.testing.assert_allclose(vector, normalize(rows.mean(0)), atol=TOLERANCE)
    assert not tokenizer_path(packed).exists()


def test_texts_are_cut_as_the_folder_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modules = [("Pooling", {"pooling_mode": "mean"})]
    folder = write_folder(tmp_path / "model", modules=modules, max_seq_length=8)
    texts, out = tmp_path / "texts.txt", tmp_path / "out.npz"
    texts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    assert cli.main(["run", str(packed), "--input", str(texts), "-o", str(out)]) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert "texts of more than 8 tokens that lost their ends: 2 of 4" in message
    for options in ([], ["--verbose"]):
        assert cli.main(["inspect", str(packed), *options]) == 0
        assert f"sequences of at most {POSITIONS} tokens, texts cut at 8" in capsys.readouterr().out
    with Session(packed) as session, np.load(out) as results:
        tokens = TextReader(packed, session.metadata).read(TEXTS)
        assert max(tokens.seq_lens) == 8
        assert results["sentence_embedding"].shape == (4, WIDTH)
        wanted = [pool(row, "mean") for row in rows_of(tokens.request)]
        np.testing.assert_allclose(results["sentence_embedding"], wanted, atol=10 * TOLERANCE)


def test_prompts_stand_in_front_of_texts(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "a cat: ", "document": ""}, "default_prompt_name": "query"}
    modules = [("Pooling", {"pooling_mode": "mean"})]
    folder = write_folder(tmp_path / "model", modules=modules, settings=settings)
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    with Session(packed) as session:
        reader = TextReader(packed, session.metadata)
    plain, with_prompt = reader.read(["sat"], prompt=""), reader.read(["a cat: sat"], prompt="")
    assert reader.read(["sat"]) == reader.read(["sat"], prompt_name="query") == with_prompt
    assert reader.read(["sat"], prompt_name="document") == plain != with_prompt
    assert reader.max_length == POSITIONS


@pytest.mark.parametrize(
    ("mode", "interface"),
    [*((mode, "packed") for mode in POOLINGS), *((mode, "padded") for mode in ("cls", "weightedmean", "lasttoken"))],
)
def test_prompts_that_pooling_leaves_out(mode: str, interface: str, tmp_path: Path) -> None:
    """The encoder reads the prompt's tokens, [CLS] included, but they are not pooled."""
    settings = {"prompts": {"query": "a cat: ", "document": ""}, "default_prompt_name": "query"}
    modules = [("Pooling", {"pooling_mode": mode, "include_prompt": False}), ("Normalize", {})]
    folder = write_folder(tmp_path / "model", modules=modules, settings=settings)
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed), "--interface", interface]) == 0
    length = len(Tokenizer.from_file(str(TOKENIZER)).encode("a cat: ")) - 1
    texts = [text for text in TEXTS if text]
    with Session(packed) as session:
        reader = TextReader(packed, session.metadata)
        for prompt, first in ((None, length), ("document", 0)):
            request = reader.read(texts, prompt_name=prompt).request
            assert request["prompt_length"] == [first] * len(texts)
            actual = np.stack(session.run(request)["sentence_embedding"])
            rows = rows_of(request)
            positions = [np.arange(first + 1, len(row) + 1)[:, None] for row in rows]
            wanted = [
                (row[first:] * index).sum(0) / index.sum() if mode == "weightedmean" else pool(row[first:], mode)
                for row, index in zip(rows, positions, strict=True)
            ]
            np.testing.assert_allclose(actual, [normalize(row) for row in wanted], atol=TOLERANCE)
        bare = session.run(request["input_ids"])["sentence_embedding"]  # ids alone have no prompt
        np.testing.assert_allclose(np.stack(bare), actual, atol=TOLERANCE)


def test_a_folder_runs_as_it_is(tmp_path: Path) -> None:
    modules = [("Pooling", {"pooling_mode": "cls"}), ("Normalize", {})]
    folder = write_folder(tmp_path / "model", modules=modules)
    texts, out = tmp_path / "texts.txt", tmp_path / "out.npz"
    texts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert cli.main(["run", str(folder), "--input", str(texts), "-o", str(out)]) == 0
    with np.load(out) as results:
        np.testing.assert_allclose(np.linalg.norm(results["sentence_embedding"], axis=1), 1, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 10_000])
def test_vectors_are_cut_after_the_last_module(size: int, tmp_path: Path) -> None:
    modules: list[tuple[str, dict[str, Any]]] = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    folder = write_folder(tmp_path / "model", modules=modules, settings={"truncate_dim": size})
    actual, rows = vectors(folder, tmp_path)
    wanted = np.stack([normalize(pool(row, "mean"))[:size] for row in rows])
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)
    actual, _ = vectors(folder, tmp_path, "--normalize")
    again = [normalize(row) for row in wanted]
    np.testing.assert_allclose(actual, again, atol=TOLERANCE)
    actual, _ = vectors(folder, tmp_path, "--no-normalize")
    np.testing.assert_allclose(actual, [pool(row, "mean")[:size] for row in rows], atol=10 * TOLERANCE)
