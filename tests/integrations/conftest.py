# SPDX-License-Identifier: Apache-2.0
"""Folders of sentence-transformers with random weights, and the packed files that are made from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.support.folders import CONFIG, TOKENIZER, WIDTH, write_folder

MOST = 64
HEADS = {
    "BertModel": [("Pooling", {"pooling_mode": "mean", "embedding_dimension": WIDTH}), ("Normalize", {})],
    "BertForMaskedLM": [("sentence_transformers.sparse_encoder.models.SpladePooling", {"pooling_strategy": "max"})],
    "BertForSequenceClassification": [],
}

Saver = Callable[..., Path]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saver:
    """A function that saves a random model of one of transformers' classes, with entries of its config, to a folder."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def save(kind: str = "BertModel", *, seed: int = 0, modules: Any = None, **entries: Any) -> Path:
        torch.manual_seed(seed)
        folder: Path = tmp_path_factory.mktemp(kind)
        model_class = getattr(transformers, kind)
        config = {name: value for name, value in CONFIG.items() if name not in ("model_type", "architectures")}
        model = model_class(model_class.config_class(**{**config, **entries})).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))
        chain = HEADS[kind] if modules is None else modules
        settings = {"model_type": "SparseEncoder"} if "Masked" in kind else {"prompts": {"query": "query: "}}
        settings = None if "Sequence" in kind else settings
        write_folder(folder, model=None, tokenizer=None, modules=chain, max_seq_length=MOST, settings=settings)
        model.save_pretrained(folder)
        if "Masked" in kind:
            listed = (folder / "modules.json").read_text("utf-8")
            theirs = "sentence_transformers.sparse_encoder.models.MLMTransformer"
            (folder / "modules.json").write_text(listed.replace("sentence_transformers.models.Transformer", theirs))
        names = ("pad", "cls", "sep", "unk", "mask")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(TOKENIZER),
            model_max_length=MOST,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **{f"{name}_token": f"[{name.upper()}]" for name in names},
        )
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def packed() -> Callable[..., Path]:
    """Rewrites a folder, with options of `padfree optimize`."""

    def pack(folder: Path, *options: str) -> Path:
        result = folder.with_name("_".join([folder.name, *(option.strip("-") for option in options)]) + ".onnx")
        if not result.exists():
            assert cli.main(["optimize", str(folder), "-o", str(result), *options]) == 0
        return result

    return pack
