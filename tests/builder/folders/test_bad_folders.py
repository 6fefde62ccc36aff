# SPDX-License-Identifier: Apache-2.0
"""Folders that cannot be used are each refused in one paragraph that says why and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from padfree.builder import cli
from padfree.builder.errors import BuildError
from padfree.builder.folders.counts import check_counts
from padfree.builder.folders.folder import read_folder

from tests.support.folders import (
    ENCODER,
    VOCABULARY,
    WIDTH,
    write_dense,
    write_folder,
    write_json,
    write_safetensors,
    write_small_tokenizer,
)

LINK = "version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n"
MEAN = ("Pooling", {"pooling_mode": "mean"})


def weights(folder: Path, rows: int = VOCABULARY, width: int = WIDTH) -> Path:
    table = np.zeros((rows, width), np.float32)
    return write_safetensors(folder / "model.safetensors", {"embeddings.word_embeddings.weight": table})


def nothing(folder: Path) -> None:
    write_folder(folder, model=None)


def links_of_git_lfs(folder: Path) -> None:
    write_folder(folder, model=None)
    (folder / "model.safetensors").write_text(LINK)


def tokenizer_that_is_a_link(folder: Path) -> None:
    write_folder(folder)
    (folder / "tokenizer.json").write_text(LINK)


def config_that_is_a_link(folder: Path) -> None:
    write_folder(folder)
    (folder / "config.json").write_text(LINK)


def pickles_alone(folder: Path) -> None:
    write_folder(folder, model=None)
    (folder / "pytorch_model.bin").write_bytes(b"PK")


def quantized_names(folder: Path) -> None:
    write_folder(folder)
    for name in ("model_qint8_avx512.onnx", "model_quantized.onnx"):
        shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / name)
    (folder / "onnx" / "model.onnx").unlink()


def quantized_content(folder: Path) -> None:
    write_folder(folder)
    model = onnx.load(str(ENCODER))
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1])
    weight = helper.make_tensor("quantised", TensorProto.INT8, [4], [1, 2, 3, 4])
    model.graph.initializer.extend([scale, weight])
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["quantised", "scale"], ["floats"]))
    onnx.save(model, str(folder / "onnx" / "model.onnx"))


def a_decoder(folder: Path) -> None:
    write_folder(folder, model=None, config={"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    weights(folder)


def remote_code(folder: Path) -> None:
    code = {"AutoConfig": "configuration_odd.OddConfig", "AutoModel": "modeling_odd.OddModel"}
    write_folder(folder, model=None, config={"model_type": "odd_encoder", "auto_map": code})
    weights(folder)


def a_module_of_its_own(folder: Path) -> None:
    write_folder(folder, modules=[MEAN, ("custom_st.Rotate", {})])


def a_module_that_is_not_read(folder: Path) -> None:
    write_folder(folder, modules=[("CNN", {})])


def a_module_outside(folder: Path) -> None:
    write_folder(folder, modules=[MEAN])
    listed = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [listed[0], {**listed[1], "path": "../../elsewhere"}])


def pooling_not_downloaded(folder: Path) -> None:
    write_folder(folder, modules=[MEAN])
    shutil.rmtree(folder / "1_Pooling")


def pooling_without_settings(folder: Path) -> None:
    write_folder(folder, modules=[MEAN])
    write_json(folder / "1_Pooling" / "config.json", {})


def splade_not_downloaded(folder: Path) -> None:
    write_folder(folder, modules=[("SpladePooling", {"pooling_strategy": "max"})])
    shutil.rmtree(folder / "1_SpladePooling")


def dense_without_settings(folder: Path) -> None:
    write_folder(folder, modules=[MEAN, ("Dense", {"bias": True})])
    write_dense(folder, 2, 8, WIDTH)
    (folder / "2_Dense" / "config.json").unlink()


def pickled_dense(folder: Path) -> None:
    write_folder(folder, modules=[MEAN, ("Dense", {"bias": True})])
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"PK")


def dense_of_another_model(folder: Path) -> None:
    write_folder(folder, modules=[MEAN, ("Dense", {"activation_function": "torch.nn.modules.linear.Identity"})])
    write_dense(folder, 2, 8, WIDTH // 2)


def no_config(folder: Path) -> None:
    write_folder(folder)
    (folder / "config.json").unlink()


def damaged_config(folder: Path) -> None:
    write_folder(folder)
    (folder / "config.json").write_text('{"model_type": "bert",')


def config_without_model(folder: Path) -> None:
    write_folder(folder)
    write_json(folder / "config.json", {"vocab_size": VOCABULARY})


def config_with_a_text_for_a_number(folder: Path) -> None:
    write_folder(folder, config={"vocab_size": "many"})


def config_of_another_model(folder: Path) -> None:
    write_folder(folder, config={"vocab_size": 30522})


def config_of_other_weights(folder: Path) -> None:
    write_folder(folder, model=None)
    weights(folder, width=2 * WIDTH)


def config_of_layers_without_end(folder: Path) -> None:
    write_folder(folder, model=None, config={"num_hidden_layers": 10**9})
    weights(folder)


def config_of_labels_without_end(folder: Path) -> None:
    config = {"num_labels": 10**9, "architectures": ["BertForSequenceClassification"]}
    write_folder(folder, model=None, config=config)
    weights(folder)


def tokenizer_of_a_larger_model(folder: Path) -> None:
    write_folder(folder, tokenizer=write_small_tokenizer(folder.parent / "large.json", 2 * VOCABULARY))


def tokenizer_of_a_smaller_model(folder: Path) -> None:
    tokenizer = write_small_tokenizer(folder.parent / "small.json", 90)
    write_folder(folder, config={"pad_token_id": 1}, tokenizer=tokenizer)


def damaged_tokenizer(folder: Path) -> None:
    write_folder(folder)
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (nothing, "has neither weights (model.safetensors) nor an ONNX file"),
        (links_of_git_lfs, "model.safetensors: is a link of git lfs, not the file itself; fetch it: git lfs pull"),
        (tokenizer_that_is_a_link, "tokenizer.json: is a link of git lfs, not the file itself; fetch it: git lfs pull"),
        (config_that_is_a_link, "config.json: is a link of git lfs, not the file itself; fetch it: git lfs pull"),
        (pickles_alone, "has pickled weights alone (pytorch_model.bin), and loading a pickle may run code"),
        (quantized_names, "has quantised ONNX files alone (onnx/model_qint8_avx512.onnx, onnx/model_quantized.onnx)"),
        (quantized_content, "model.onnx: is quantised (DequantizeLinear)"),
        (a_decoder, "is a decoder (LlamaForCausalLM), which generates text; padfree takes encoders"),
        (remote_code, "needs code of its own (configuration_odd.py, modeling_odd.py), and padfree runs no code"),
        (a_module_of_its_own, "has the module 'custom_st.Rotate', which is code of the model's own"),
        (a_module_that_is_not_read, "has the module sentence_transformers.models.CNN, which padfree does not write"),
        (a_module_outside, "a module's path is '../../elsewhere', which is outside of the folder"),
        (pooling_not_downloaded, "modules.json: lists the module 1_Pooling, and"),
        (pooling_without_settings, "1_Pooling/config.json is missing or says nothing; download the whole folder"),
        (splade_not_downloaded, "1_SpladePooling/config.json is missing or says nothing"),
        (dense_without_settings, "2_Dense/config.json is missing or says nothing"),
        (pickled_dense, "2_Dense: holds only pytorch_model.bin, a pickle, and loading one may run code"),
        (dense_of_another_model, "the module Dense takes vectors of 32, the model's have 64"),
        (no_config, "has no config.json, so it is not a model's folder"),
        (no_config, "or an .onnx file, such as "),
        (damaged_config, "config.json: not JSON"),
        (config_without_model, "config.json: has no 'model_type', so it describes no model of transformers"),
        (config_with_a_text_for_a_number, "config.json: 'vocab_size' is 'many', allowed: a whole number"),
        (config_of_another_model, "config.json: says vocab_size 30522, the table in"),
        (config_of_other_weights, "config.json: says hidden_size 64, the weights (model.safetensors, embeddings.word"),
        (config_of_layers_without_end, "config.json: says num_hidden_layers 1000000000, the weights have 1 tensors"),
        (config_of_labels_without_end, "config.json: 'num_labels' is 1000000000, allowed: 0 to 1048576"),
        (
            tokenizer_of_a_larger_model,
            "tokenizer.json: has ids up to 1859 ('word1854'), config.json says vocab_size 930",
        ),
        (
            tokenizer_of_a_smaller_model,
            "tokenizer.json: pads with 0, config.json with 1 (pad_token_id), and has 90 tokens",
        ),
        (damaged_tokenizer, "tokenizer.json: not a tokenizer file"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_bad_folder_is_refused_in_one_paragraph(
    write: Callable[[Path], None], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "model")
    output = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(tmp_path / "model"), "-o", str(output)]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("padfree: error: ")]
    assert len(lines) == 1
    assert wanted in lines[0]
    assert str(tmp_path / "model") in lines[0] or "--pooling" in lines[0]
    assert "padfree-folder-" not in lines[0]  # the temporary file
    assert [path.name for path in tmp_path.glob("packed*")] == []


@pytest.mark.parametrize(
    "config",
    [
        {"intermediate_size": 10**9},
        {"num_attention_heads": 10**6},
        {"type_vocab_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"relative_attention_num_buckets": 10**7},
        {"hidden_sizes": [64, 10**7]},
        {"text_config": {"intermediate_size": 10**9}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_counts_beyond_the_weights_are_refused_before_anything_is_made(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = tmp_path / "model"
    write_folder(folder, model=None, config=config)
    weights(folder)
    with pytest.raises(BuildError, match=r"config\.json: says [a-z_.]+ 10+, the weights have no dimension beyond 930"):
        read_folder(folder)


def test_a_header_cannot_claim_a_size_that_the_file_has_not(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    head = json.dumps({"a": {"dtype": "F32", "shape": [10**9, 0], "data_offsets": [0, 0]}}).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head)
    config = write_json(tmp_path / "config.json", {"intermediate_size": 10**8})
    with pytest.raises(BuildError, match="no dimension beyond 0"):
        check_counts([file], config)


def test_code_of_a_model_does_not_matter_beside_an_onnx_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", config={"auto_map": {"AutoModel": "modeling_odd.OddModel"}})
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "packed.onnx")]) == 0


def test_the_float_file_is_taken_and_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    for name in ("model_O4.onnx", "model_fp16.onnx", "model_quantized.onnx", "model_O1.onnx"):
        (folder / "onnx" / name).write_bytes(b"not looked at")
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "packed.onnx")]) == 0
    said = capsys.readouterr().err
    assert "takes onnx/model.onnx, not onnx/model_O1.onnx, onnx/model_O4.onnx, onnx/model_fp16.onnx" in said


def test_options_for_results_are_refused_where_they_cannot_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    packed, plain = tmp_path / "packed.onnx", write_folder(tmp_path / "plain")
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    for inputs, options, wanted in (
        (packed, ["--pooling", "cls"], "is rewritten already"),
        (folder, ["--pooling", "median"], "'median' is unknown, allowed: cls, lasttoken, mean"),
        (ENCODER, ["--normalize"], "pass --pooling mean, for one"),
        (folder, ["--pooling", "none", "--normalize"], "--normalize is for vectors of texts"),
        (plain, ["--no-normalize"], "--no-normalize is for vectors of texts, which --pooling makes, and here are rows"),
        (ENCODER, ["--pooling", "mean", "--mask", "kept"], "pass --mask NAME"),
    ):
        capsys.readouterr()
        assert cli.main(["optimize", str(inputs), "-o", str(tmp_path / "other.onnx"), *options]) == 1
        assert wanted in capsys.readouterr().err


def test_texts_need_the_tokenizer_that_the_model_was_made_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    packed, texts = tmp_path / "packed.onnx", tmp_path / "texts.txt"
    texts.write_text("a cat\n")
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    kept = tmp_path / "packed.onnx.tokenizer.json"
    command = ["run", str(packed), "--input", str(texts), "-o", str(tmp_path / "out.npz")]
    assert cli.main([*command, "--prompt", "query"]) == 1
    assert "prompt 'query': the model has no prompts; leave it out" in capsys.readouterr().err
    write_small_tokenizer(kept, 50)
    assert cli.main(command) == 1
    assert "not the tokenizer that the model was made with" in capsys.readouterr().err
    kept.unlink()
    assert cli.main(command) == 1
    assert "no such tokenizer" in capsys.readouterr().err
    assert cli.main([*command, "--tokenizer", str(folder / "tokenizer.json")]) == 0


def test_what_is_no_tokenizer_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "model", modules=[MEAN])
    theirs = write_json(tmp_path / "packed.onnx.tokenizer.json", {"mine": 1})
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "packed.onnx")]) == 1
    assert "a file that is no tokenizer and would be lost" in capsys.readouterr().err
    assert json.loads(theirs.read_text()) == {"mine": 1}


@pytest.mark.parametrize("entry", ["embedding_size", "input_embedding_size", "word_embed_proj_dim"])
def test_embeddings_may_be_narrower_than_layers(entry: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", model=None, config={entry: WIDTH // 2}, modules=[MEAN])
    file = weights(folder, width=WIDTH // 2)
    assert read_folder(folder).weights == (file,)
