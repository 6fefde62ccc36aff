# SPDX-License-Identifier: Apache-2.0
"""attach: with a packed file, models of sentence-transformers give what they give by themselves."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.runtime import SessionError

from tests.support.folders import DEMO_DATA, ROOT, write_folder, write_json, write_small_tokenizer
from tests.support.torch_folders import rename_input, write_torch_folder

pytestmark = pytest.mark.needs_torch
st: Any = pytest.importorskip("sentence_transformers")

CLOSE = 1e-5
CLASSIFIER = ROOT / "tests" / "fixtures" / "optimum" / "bert_sequence_classification.onnx"
TEXTS = [
    *(DEMO_DATA / "texts.txt").read_text("utf-8").splitlines(),
    "na\u00efve caf\u00e9 \u2013 text",
    "",
    "  spaces\tand\nlines ",
    "word " * 300,
]
PAIRS = [(a, b) for a, b in zip(TEXTS, reversed(TEXTS), strict=True)]
PLANS = ((), ("--pooling", "none"))


def attach_plan(model: Any, plan: Path, **options: Any) -> Any:
    from padfree.sentence_transformers import attach

    return attach(model, plan, **options)


def bi_encoder(folder: Path) -> Any:
    return st.SentenceTransformer(str(folder), device="cpu")


def largest(actual: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)).max())


@pytest.mark.parametrize("options", PLANS, ids=["vectors", "rows"])
def test_vectors_are_those_of_the_model(saved: Any, packed: Any, options: tuple[str, ...]) -> None:
    folder = saved()
    original, model = bi_encoder(folder), attach_plan(bi_encoder(folder), packed(folder, *options))
    assert model.padfree_tokens is not None
    for asked in (
        {},
        {"prompt_name": "query"},
        {"prompt": "passage: "},
        {"normalize_embeddings": True},
        {"truncate_dim": 16},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"batch_size": 3},
        {"processing_kwargs": {"text": {"max_length": 8, "truncation": True}}},
    ):
        actual, expected = model.encode(TEXTS, **asked), original.encode(TEXTS, **asked)
        assert type(actual) is type(expected)
        assert largest(actual if not isinstance(actual, list) else np.stack(actual), np.stack(list(expected))) < CLOSE
    assert largest(model.encode(TEXTS[0]), original.encode(TEXTS[0])) < CLOSE
    assert largest(model.encode_query(TEXTS), original.encode_query(TEXTS)) < CLOSE
    assert model.encode([]).shape == original.encode([]).shape
    assert largest(model.encode(TEXTS, precision="int8"), original.encode(TEXTS, precision="int8")) <= 1
    both = model.similarity(model.encode(TEXTS), model.encode(TEXTS[:3]))
    assert largest(both, original.similarity(original.encode(TEXTS), original.encode(TEXTS[:3]))) < CLOSE
    with pytest.raises(SessionError, match="before attach"):
        model.save("anywhere")
    assert model.get_embedding_dimension() == original.get_embedding_dimension()


def test_shorter_texts_follow_the_model(saved: Any, packed: Any) -> None:
    folder = saved()
    original, model = bi_encoder(folder), attach_plan(bi_encoder(folder), packed(folder))
    for one in (original, model):
        one.max_seq_length = 10
    assert largest(model.encode(TEXTS), original.encode(TEXTS)) < CLOSE


def test_rows_of_tokens(saved: Any, packed: Any) -> None:
    folder = saved()
    original, model = bi_encoder(folder), attach_plan(bi_encoder(folder), packed(folder, "--pooling", "none"))
    actual, expected = (one.encode(TEXTS, output_value="token_embeddings") for one in (model, original))
    assert max(largest(a, b) for a, b in zip(actual, expected, strict=True)) < CLOSE
    with pytest.raises(SessionError, match="--pooling none"):
        attach_plan(bi_encoder(folder), packed(folder)).encode(TEXTS, output_value="token_embeddings")


def test_prompts_that_pooling_leaves_out(saved: Any, packed: Any) -> None:
    folder = saved()
    original, model = bi_encoder(folder), attach_plan(bi_encoder(folder), packed(folder, "--pooling", "none"))
    pooled = attach_plan(bi_encoder(folder), packed(folder))
    for one in (original, model, pooled):
        one.set_pooling_include_prompt(False)
    actual, expected = (one.encode(TEXTS, prompt_name="query") for one in (model, original))
    assert largest(actual, expected) < CLOSE
    with pytest.raises(SessionError, match="leaves out"):
        pooled.encode(TEXTS, prompt_name="query")
    settings = {"pooling_mode": "mean", "embedding_dimension": 64, "include_prompt": False}
    folder = saved(modules=[("Pooling", settings), ("Normalize", {})])
    original, pooled = bi_encoder(folder), attach_plan(bi_encoder(folder), packed(folder))
    actual, expected = (one.encode(TEXTS, prompt_name="query") for one in (pooled, original))
    assert largest(actual, expected) < CLOSE
    assert largest(actual, pooled.encode([f"query: {text}" for text in TEXTS])) > 100 * CLOSE
    assert largest(pooled.encode(TEXTS), original.encode(TEXTS)) < CLOSE


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("options", [(), ("--outputs", "logits")], ids=["scores", "logits"])
def test_cross_encoders(saved: Any, packed: Any, labels: int, options: tuple[str, ...]) -> None:
    folder = saved("BertForSequenceClassification", num_labels=labels)
    original = st.CrossEncoder(str(folder), device="cpu", max_length=64)
    if labels == 3 and not options:
        options = ("--outputs", "logits")
    model = attach_plan(st.CrossEncoder(str(folder), device="cpu", max_length=64), packed(folder, *options))
    assert model.padfree_tokens is not None
    for asked in ({}, {"apply_softmax": True}, {"convert_to_tensor": True}, {"prompt": "query: "}):
        assert largest(model.predict(PAIRS, **asked), original.predict(PAIRS, **asked)) < CLOSE
    assert largest(model.predict(PAIRS[0]), original.predict(PAIRS[0])) < CLOSE
    if labels == 1:
        ranked = [[hit["corpus_id"] for hit in one.rank("a cat", TEXTS, top_k=5)] for one in (model, original)]
        assert ranked[0] == ranked[1]


@pytest.mark.parametrize("options", [(), ("--outputs", "logits")], ids=["scores", "logits"])
def test_token_types_by_another_name(options: tuple[str, ...], tmp_path: Path) -> None:
    import onnx

    exported = tmp_path / "exported.onnx"
    encoder = onnx.load(str(CLASSIFIER))
    rename_input(encoder, "token_type_ids", "segment_ids")
    onnx.save_model(encoder, str(exported))
    words = write_small_tokenizer(tmp_path / "words.json", 64)
    sizes = {"vocab_size": 64, "hidden_size": 16, "max_position_embeddings": 40, "intermediate_size": 24}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}
    config = {**sizes, **layers, "architectures": ["BertForSequenceClassification"]}
    source = write_folder(tmp_path / "source", model=exported, tokenizer=words, config=config)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 40}
    write_json(source / "tokenizer_config.json", settings)
    folder = write_torch_folder(source, tmp_path / "torch", exported)
    pairs = [("word1 word2", "word3"), ("word4", "word5 word6 word7"), ("", "word8")]
    plan = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(source), "-o", str(plan), *options]) == 0
    expected = st.CrossEncoder(str(folder), device="cpu").predict(pairs)
    model = attach_plan(st.CrossEncoder(str(folder), device="cpu"), plan)
    assert model.padfree_tokens is not None
    assert largest(model.predict(pairs), expected) < 5 * CLOSE
    model.padfree_tokens = None  # sentence-transformers' own code, which pads
    assert largest(model.predict(pairs), expected) < 5 * CLOSE


@pytest.mark.parametrize("options", PLANS, ids=["vectors", "logits"])
def test_sparse_encoders(saved: Any, packed: Any, options: tuple[str, ...]) -> None:
    folder = saved("BertForMaskedLM")
    original = st.SparseEncoder(str(folder), device="cpu")
    model = attach_plan(st.SparseEncoder(str(folder), device="cpu"), packed(folder, *options))
    for asked in ({}, {"max_active_dims": 10}, {"convert_to_sparse_tensor": False}):
        actual, expected = (one.encode(TEXTS, **asked).to_dense() for one in (model, original))
        assert largest(actual, expected) < CLOSE


@pytest.mark.slow
def test_processes_of_a_pool_open_the_plan_themselves(saved: Any, packed: Any) -> None:
    folder = saved()
    model = attach_plan(bi_encoder(folder), packed(folder, "--pooling", "none"))
    expected = model.encode(TEXTS)
    assert largest(pickle.loads(pickle.dumps(model)).encode(TEXTS), expected) < CLOSE
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        assert largest(model.encode(TEXTS, pool=pool, chunk_size=20), expected) < CLOSE
        rows = model.encode(TEXTS, pool=pool, output_value="token_embeddings")
    finally:
        model.stop_multi_process_pool(pool)
    assert len(rows) == len(TEXTS)


def test_plans_of_other_models_are_refused(saved: Any, packed: Any) -> None:
    folder = saved()
    other = saved(seed=1)
    model = bi_encoder(folder)
    kind, encoder = type(model), model[0].model
    with pytest.raises(SessionError, match="other weights"):
        attach_plan(model, packed(other))
    assert type(model) is kind
    assert model[0].model is encoder
    with pytest.raises(SessionError, match="another pooling"):
        attach_plan(model, packed(folder, "--pooling", "cls"))
    with pytest.raises(SessionError, match="64 numbers, and the model gives 32: it is another model's plan"):
        attach_plan(bi_encoder(saved(hidden_size=32, modules=[])), packed(saved(modules=[]), "--pooling", "none"))
    with pytest.raises(SessionError, match="padded interface"):
        attach_plan(model, packed(folder, "--interface", "padded"))
    with pytest.raises(SessionError, match=r"call \.to"):
        attach_plan(model, folder / "model.plan")
    with pytest.raises(SessionError, match="the output 'scores', and the model is a SentenceTransformer"):
        attach_plan(model, packed(saved("BertForSequenceClassification", num_labels=1)))


def fp8_plan(folder: Path, output: Path, *options: str) -> Path:
    """Writes a packed file in fp8, which onnxruntime runs on the CPU with an engine's numbers."""
    arguments = ["--precision", "fp8", "--calibrate", str(DEMO_DATA / "texts.txt"), "--largest-loss", "1"]
    assert cli.main(["optimize", str(folder), "-o", str(output), *arguments, *options]) == 0
    return output


def test_what_e4m3_leaves_of_vectors_is_close_enough() -> None:
    """The vectors differ as real ones of 384 numbers do: by 0.019 of 0.18, which is too much for half precision."""
    import torch
    from padfree.sentence_transformers.attach import _difference

    draw = torch.Generator().manual_seed(0)
    expected, noise, other = (torch.randn(4, 384, generator=draw) for _ in range(3))
    expected = torch.nn.functional.normalize(expected)
    actual = expected + 0.019 * noise / noise.abs().max()
    assert _difference(actual, expected, "fp16").startswith("answers that differ by 0.019 of 0.")
    assert _difference(actual, expected, "fp8") == ""
    assert _difference(torch.nn.functional.normalize(other), expected, "fp8").startswith("vectors with a cosine of")
    scores = torch.tensor([[0.9], [0.1], [0.4], [0.0]])
    assert _difference(scores + 0.1, scores, "fp8") == ""
    assert _difference(scores.flip(0), scores, "fp8").startswith("answers that differ by 0.9 of 0.9 (fp8)")


def test_plans_in_fp8_are_compared_by_cosine(saved: Any, tmp_path: Path) -> None:
    folder, other = saved(), saved(seed=1)
    plan = fp8_plan(folder, tmp_path / "fp8.onnx")
    original, model = bi_encoder(folder), attach_plan(bi_encoder(folder), plan)
    actual, expected = model.encode(TEXTS), original.encode(TEXTS)
    assert (actual * expected).sum(1).min() > 0.97
    with pytest.raises(SessionError, match=r"vectors with a cosine of .* to the model's \(fp8: 0.97\): other weights"):
        attach_plan(bi_encoder(other), plan)
    with pytest.raises(SessionError, match="vectors with a cosine"):
        attach_plan(bi_encoder(folder), fp8_plan(folder, tmp_path / "cls.onnx", "--pooling", "cls"))


def test_other_versions_and_models_are_refused(tmp_path: Path) -> None:
    from padfree.sentence_transformers import attach
    from padfree.sentence_transformers.attach import check_version

    check_version("6.0.1")
    for version in ("5.4.1", "7.0.0"):
        with pytest.raises(SessionError, match=r"allowed: 6\.x"):
            check_version(version)
    with pytest.raises(SessionError, match="the model is a list, allowed: SentenceTransformer"):
        attach([object()], tmp_path / "packed.onnx")


def test_folders_and_second_plans_are_refused_with_what_to_do(saved: Any, packed: Any) -> None:
    folder = saved()
    model = bi_encoder(folder)
    with pytest.raises(SessionError, match=r"is a folder, .* for the CPU: padfree optimize .* -o .*\.onnx"):
        attach_plan(model, folder)
    model = attach_plan(model, packed(folder))
    with pytest.raises(SessionError, match=r"the model runs a plan already, .* load the model again"):
        attach_plan(model, packed(folder))
