# SPDX-License-Identifier: Apache-2.0
"""padfree.Model gives the answers of the exported model in onnxruntime, the command line and transformers."""

from __future__ import annotations

import asyncio
import copy
import doctest
import io
import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import padfree
import pytest
from padfree.builder import cli, kept_engines
from padfree.builder import model as model_module
from padfree.builder.errors import BuildError
from padfree.builder.folders import location
from padfree.runtime import SessionError
from padfree.runtime.answers.scores import Classification
from padfree.runtime.answers.tags import TaggedSpan, join, words_of
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.classifiers import OPTIMUM, logits_of, small_folder
from tests.support.folders import ENCODER, TOKENIZER, WIDTH, write_folder
from tests.support.served_models import expected_rows as sums
from tests.support.served_models import write_reranker
from tests.support.torch_folders import write_torch_folder

Array = npt.NDArray[Any]

TORCH = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
LABELS = ("no", "maybe", "yes")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = ("the cat sat on the mat", "a", "rain, and more rain: it rained the whole day and night", "")
WORDS = ("word1 word2  word3 word9", "word50", "word7 word8 word40 word41 word42 word43 word44 word45")
TOLERANCE = 5e-5


@pytest.fixture(scope="module", autouse=True)
def cpu() -> Iterator[None]:
    """These tests compare with onnxruntime in fp32; on a machine with a GPU, a model would be an engine in fp16."""

    def refuse(*_: object, **__: object) -> None:
        raise BuildError("these tests run on the CPU")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_engines, "check_machine", refuse)
        patch.setattr(kept_engines, "no_gpu", lambda: "these tests run on the CPU")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chain = {"pooling_mode": "mean", "embedding_dimension": WIDTH}
    settings = {"prompts": {"query": "a cat: "}}
    return write_folder(
        tmp_path_factory.mktemp("embedder") / "model",
        modules=[("Pooling", chain)],
        settings=settings,
        max_seq_length=9,
    )


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[padfree.Model]:
    with padfree.Model(folder) as model:
        yield model


def means(texts: Sequence[str]) -> Array:
    """The mean of the exported encoder's rows, for every text alone."""
    session, encoder = ort.InferenceSession(str(ENCODER)), Tokenizer.from_file(str(TOKENIZER))
    encoder.no_padding()
    encoder.enable_truncation(9)
    results = []
    for text in texts:
        one = encoder.encode(text)
        feeds = {"input_ids": one.ids, "attention_mask": one.attention_mask, "token_type_ids": one.type_ids}
        arrays = {name: np.asarray([row], np.int64) for name, row in feeds.items()}
        results.append(session.run(["last_hidden_state"], arrays)[0][0].mean(0))
    return np.stack(results)


def test_vectors_are_those_of_the_exported_model_in_the_order_of_the_texts(embedder: padfree.Model) -> None:
    actual = embedder.encode(TEXTS)
    assert (actual.dtype, actual.shape) == (np.float32, (len(TEXTS), WIDTH))
    np.testing.assert_allclose(actual, means(TEXTS), atol=TOLERANCE)
    np.testing.assert_allclose(embedder.encode(TEXTS[2]), actual[2], atol=TOLERANCE)
    assert embedder.encode([]).shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (None, r"texts are None \(NoneType\), allowed: a text or a list of them"),
        (b"a", r"texts are b'a' \(bytes\)"),
        ({"a": 1}, r"texts are .*\(dict\)"),
        (["a", None], r"text 1 is None \(NoneType\), allowed: a str; leave it out, or give ''"),
        (["a", float("nan")], r"text 1 is nan \(float\)"),
        ([3], r"text 0 is 3 \(int\)"),
        (np.array("a"), r"texts are array\('a', dtype='<U1'\) \(ndarray\)"),
        (np.array([["a", "b"]]), r"texts are .*\(ndarray\), allowed: .*, such as one column of a table"),
        ([["a", "b"], ["c"]], r"text 1 is \['c'\] \(list\) of 1, allowed: a str, or a pair of two"),
        ([("a", None)], r"pair 0 holds None \(NoneType\), allowed: two texts"),
    ],
)
def test_what_is_no_text_is_named(embedder: padfree.Model, texts: Any, words: str) -> None:
    for ask in (embedder.encode, embedder.tokens):
        with pytest.raises(SessionError, match=words):
            ask(texts)


def test_a_prompt_is_a_text(embedder: padfree.Model) -> None:
    with pytest.raises(SessionError, match=r"prompt is 5 \(int\), allowed: a text; '' stands for none"):
        embedder.encode(TEXTS, prompt=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("pooling", ["median", "mean,cls", ("mean", "median"), ("mean", "none")])
def test_unknown_ways_of_pooling_are_refused(tmp_path: Path, pooling: Any) -> None:
    folder = write_folder(tmp_path / "small", modules=[("Pooling", {"pooling_mode": "mean"})])
    with pytest.raises(BuildError, match=r"is unknown, allowed: cls, lasttoken, mean, .*or none alone"):
        padfree.Model(folder, pooling=pooling, backend="onnxruntime", verify=False)


def test_copies_are_refused_with_what_helps(embedder: padfree.Model) -> None:
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be copied or sent to another process; open it there: padfree\.Mo"):
            attempt(embedder)


def test_columns_of_pyarrow_are_texts(embedder: padfree.Model) -> None:
    arrow = pytest.importorskip("pyarrow")
    wanted = embedder.encode(TEXTS)
    for texts in (arrow.array(TEXTS), arrow.chunked_array([TEXTS]), arrow.table({"text": TEXTS})["text"]):
        np.testing.assert_array_equal(embedder.encode(texts), wanted)
    with pytest.raises(SessionError, match=r"text 1 is None \(NoneType\)"):
        embedder.encode(arrow.array(["a", None]))


def test_texts_may_come_from_anything_that_has_them(embedder: padfree.Model) -> None:
    wanted = embedder.encode(TEXTS)
    for texts in (iter(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), dict.fromkeys(TEXTS).keys()):
        np.testing.assert_array_equal(embedder.encode(texts), wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"batch_size": 32}, "has no keyword 'batch_size': batches are formed by tokens; leave it out"),
        ({"normalize_embeddings": True}, "normalize=True"),
        ({"show_progress_bar": True}, "padfree embed"),
        ({"convert_to_tensor": True}, "torch.from_numpy"),
        ({"truncate_dim": 256}, r"\[:, :N\]"),
        ({"batchsize": 32}, "'batchsize': allowed are texts, prompt_name, prompt, normalize, inputs"),
    ],
)
def test_keywords_of_sentence_transformers_are_answered(
    embedder: padfree.Model, keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words) as raised:
        embedder.encode(TEXTS, **keywords)
    assert "\n" not in str(raised.value)
    with pytest.raises(TypeError, match=words):
        asyncio.run(embedder.encode_async(TEXTS, **keywords))


def test_keywords_that_change_nothing_are_taken(embedder: padfree.Model) -> None:
    usual: dict[str, Any] = {"show_progress_bar": False, "convert_to_numpy": True, "convert_to_tensor": False}
    np.testing.assert_array_equal(
        embedder.encode(TEXTS, **usual, output_value="sentence_embedding"), embedder.encode(TEXTS)
    )


def test_a_model_shows_its_name_and_use(embedder: padfree.Model, folder: Path) -> None:
    assert repr(embedder) == f"<padfree.Model {str(folder)!r}: encode>"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", -1, None])
def test_a_device_is_a_number(folder: Path, device: Any) -> None:
    with pytest.raises(BuildError, match="allowed: a GPU's number, 0 or more; backend='onnxruntime' runs it on"):
        padfree.Model(folder, device=device)


def test_windows_keep_the_order(embedder: padfree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padfree.runtime.chunks.CPU_CHUNK_TOKENS", 12)
    np.testing.assert_allclose(embedder.encode(TEXTS * 3), means(TEXTS * 3), atol=TOLERANCE)


def test_prompts_stand_in_front_and_vectors_get_length_1(embedder: padfree.Model) -> None:
    wanted = means([f"a cat: {text}" for text in TEXTS])
    np.testing.assert_allclose(embedder.encode(TEXTS, prompt_name="query"), wanted, atol=TOLERANCE)
    np.testing.assert_allclose(embedder.encode(TEXTS, prompt="a cat: "), wanted, atol=TOLERANCE)
    unit = embedder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(unit, means(TEXTS) / np.linalg.norm(means(TEXTS), axis=1, keepdims=True), atol=TOLERANCE)
    with pytest.raises(SessionError, match="prompt 'passage': the model's prompts are query"):
        embedder.encode(TEXTS, prompt_name="passage")


def test_the_command_line_gives_the_same(embedder: padfree.Model, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:3]))
    command = ["run", str(folder), "--input", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out.npz")]
    assert cli.main(command) == 0
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_array_equal(embedder.encode(TEXTS[:3]), results["sentence_embedding"])


def test_an_exported_file_is_pooled_as_asked() -> None:
    with padfree.Model(ENCODER, tokenizer=TOKENIZER, pooling="mean", normalize=True) as model:
        actual = model.encode(["a cat"])
        np.testing.assert_allclose(np.linalg.norm(actual), 1.0, atol=1e-5)
        np.testing.assert_allclose(actual[0] * np.linalg.norm(means(["a cat"])), means(["a cat"])[0], atol=1e-4)
    with padfree.Model(ENCODER, tokenizer=TOKENIZER) as rows:
        (one,) = rows.tokens(["a cat"])
        assert one.vectors is not None
        np.testing.assert_allclose(one.vectors.mean(0), means(["a cat"])[0], atol=TOLERANCE)
        assert [("a cat"[start:end]) for start, end in one.offsets if end] == ["a", "c", "at"]
        with pytest.raises(
            SessionError, match=r"gives no vectors of texts, only last_hidden_state, pooler_output; .*pooling='mean'"
        ):
            rows.encode("a cat")


def test_asked_for_what_it_does_not_do_it_names_what_it_does(embedder: padfree.Model) -> None:
    for call in (embedder.classify, embedder.tag):
        with pytest.raises(SessionError, match="it makes vectors: call encode"):
            call("a cat")
    with pytest.raises(SessionError, match="it makes vectors: call encode"):
        embedder.rerank("a cat", ["rain"])


def test_documents_come_in_the_order_of_their_scores(tmp_path: Path) -> None:
    path = write_reranker(tmp_path / "reranker.onnx")
    documents = ["a cat", "rain", "the rain in the night", "day"]
    with padfree.Model(path) as model:
        ranks = model.rerank("rain", documents)
        assert model.rerank("rain", documents, top=2) == ranks[:2]
        wrong: Any
        for wrong in (-1, 0, True, "1", 1.0):
            with pytest.raises(SessionError, match=f"top is {wrong!r}, allowed: a whole number of at least 1"):
                model.rerank("rain", documents, top=wrong)
        with pytest.raises(SessionError, match="it compares two texts: call rerank"):
            model.encode("rain")
    scores = sums([("rain", document) for document in documents], 1)[:, 0]
    assert [rank.index for rank in ranks] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([rank.score for rank in ranks], np.sort(scores)[::-1], atol=TOLERANCE)


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifiers")


@pytest.mark.parametrize("problem", ["", "single_label_classification", "multi_label_classification", "regression"])
def test_classifiers_give_labels_with_scores(problem: str, classifiers: Path) -> None:
    path = small_folder(classifiers / (problem or "none"), "sequence", LABELS, problem_type=problem or None)
    logits = np.stack(logits_of("sequence", classifiers / f"{path.name}.json", WORDS))
    shares = {
        "multi_label_classification": 1 / (1 + np.exp(-logits)),
        "regression": logits,
    }.get(problem, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    with padfree.Model(path) as model:
        actual = model.classify(WORDS)
        one = model.classify(WORDS[1])
    for answer, row in zip(actual, shares, strict=True):
        assert list(answer.scores) == list(LABELS)
        np.testing.assert_allclose(list(answer.scores.values()), row, atol=TOLERANCE)
        assert (answer.label, answer.score) == (LABELS[row.argmax()], max(answer.scores.values()))
        several = [LABELS[at] for at in np.argsort(-row) if row[at] >= 0.5]
        assert answer.labels == (tuple(several) if problem.startswith("multi") else (answer.label,))
    assert isinstance(one, Classification)
    np.testing.assert_allclose(one.score, actual[1].score, atol=TOLERANCE)


def test_classes_that_share_a_label_keep_their_own_scores(tmp_path: Path) -> None:
    names = ("good", "bad", "good")
    path = small_folder(tmp_path / "model", "sequence", names)
    logits = np.stack(logits_of("sequence", tmp_path / "model.json", WORDS))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    with padfree.Model(path) as model:
        actual = model.classify(WORDS)
    for answer, row in zip(actual, shares, strict=True):
        assert list(answer.scores) == ["good", "bad", "LABEL_2"]
        np.testing.assert_allclose(list(answer.scores.values()), row, atol=TOLERANCE)
        assert answer.scores[answer.label] == answer.score == max(answer.scores.values())


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("tagger") / "model", "token", TAGS)


def test_taggers_give_words_with_positions(tagger: Path) -> None:
    logits = logits_of("token", tagger.parent / "model.json", WORDS)
    with padfree.Model(tagger) as model:
        actual = model.tag(WORDS, words=True)
        assert model.tag(WORDS[0]) == model.tag(WORDS)[0]
        with pytest.raises(SessionError, match="it has labels for words: call tag"):
            model.encode("word1")
    for text, words, rows in zip(WORDS, actual, logits, strict=True):
        assert [word.text for word in words] == text.split()
        assert all(text[word.start : word.end] == word.text for word in words)
        inner = rows[1:-1]  # without [CLS] and [SEP]
        assert [word.label for word in words] == [TAGS[at] for at in inner.argmax(1)]
        shares = np.exp(inner) / np.exp(inner).sum(1, keepdims=True)
        np.testing.assert_allclose([word.score for word in words], shares.max(1), atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_words_of_tokens_that_hold_spaces(kind: str) -> None:
    """RoBERTa's and XLM-RoBERTa's tokens begin with the space before their word; positions leave it out."""
    text = "Ada Lovelace  lived in\u00a0Londonderry \u2013 caf\u00e9"
    tokenizer = Tokenizer(models.BPE() if kind == "bytes" else models.Unigram())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False) if kind == "bytes" else pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = split
    trainer: Any = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    if kind == "metaspace":
        trainer = trainers.UnigramTrainer(vocab_size=40, unk_token="?", special_tokens=["?"])
    tokenizer.train_from_iterator([text] * 3, trainer)
    encoding = tokenizer.encode(text)
    rows = np.random.default_rng(0).standard_normal((len(encoding), 3))
    words = words_of(text, encoding, rows, LABELS)
    assert all(text[word.start : word.end] == word.text for word in words)
    assert [word.text for word in words] == (text.split() if kind == "bytes" else text.replace("  ", " ").split(" "))


def test_neighbours_of_one_kind_are_one_up_to_the_next_that_begins() -> None:
    labels = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-PER", "x", "x"]
    text = "ab cd ef gh ij kl mn op"
    words = [
        TaggedSpan(text[at : at + 2], at, at + 2, label, 0.5 + at / 100)
        for at, label in zip(range(0, 24, 3), labels, strict=True)
    ]
    actual = join(text, words)
    assert [(item.text, item.label) for item in actual] == [
        ("ab cd", "PER"),
        ("gh", "LOC"),
        ("ij", "LOC"),
        ("kl", "PER"),
        ("mn op", "x"),
    ]
    assert actual[0].score == pytest.approx(0.515)


@pytest.mark.needs_torch
def test_pipelines_of_transformers_give_the_same(classifiers: Path, tagger: Path, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    settings = {"pad_token": "[PAD]", "tokenizer_class": "PreTrainedTokenizerFast"}
    for problem in ("single_label_classification", "multi_label_classification", "regression"):
        path = small_folder(classifiers / f"torch_{problem}", "sequence", LABELS, problem_type=problem)
        exported = OPTIMUM / "bert_sequence_classification.onnx"
        folder = write_torch_folder(path, tmp_path / problem, exported, config=TORCH, tokenizer=settings)
        theirs = transformers.pipeline("text-classification", str(folder), top_k=None)(list(WORDS))
        with padfree.Model(path) as model:
            for one, answers in zip(model.classify(WORDS), theirs, strict=True):
                assert one.scores == pytest.approx({item["label"]: item["score"] for item in answers}, abs=TOLERANCE)
    exported = OPTIMUM / "bert_token_classification.onnx"
    folder = write_torch_folder(tagger, tmp_path / "tagger", exported, config=TORCH, tokenizer=settings)
    theirs = transformers.pipeline("token-classification", str(folder), aggregation_strategy="first")(list(WORDS))
    with padfree.Model(tagger) as model:
        for words, answers in zip(model.tag(WORDS), theirs, strict=True):
            ours = [(word.label, word.start, word.end) for word in words]
            assert ours == [(item["entity_group"], item["start"], item["end"]) for item in answers]
            assert [word.score for word in words] == pytest.approx([item["score"] for item in answers], abs=TOLERANCE)


def test_async_forms_give_the_same(embedder: padfree.Model) -> None:
    async def both() -> list[Array]:
        return list(await asyncio.gather(embedder.encode_async(TEXTS), embedder.encode_async(TEXTS, normalize=True)))

    plain, unit = asyncio.run(both())
    np.testing.assert_array_equal(plain, embedder.encode(TEXTS))
    np.testing.assert_array_equal(unit, embedder.encode(TEXTS, normalize=True))


def test_async_forms_leave_the_loop_free(embedder: padfree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one task waits for a run, others continue."""
    run, released = embedder.session.run_ragged, threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        assert released.wait(60)
        return run(*arguments, **options)

    monkeypatch.setattr(embedder.session, "run_ragged", slow)

    async def beside() -> Array:
        under_way = asyncio.create_task(embedder.encode_async(TEXTS))
        await asyncio.sleep(0.05)  # returns only if the loop is free
        assert not under_way.done()
        released.set()
        return await under_way

    np.testing.assert_allclose(asyncio.run(beside()), means(TEXTS), atol=TOLERANCE)


def test_examples_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without an owner belongs to sentence-transformers."""
    asked: list[str] = []
    monkeypatch.setattr(location, "download", lambda name, *_: asked.append(name) or folder)
    results = doctest.testmod(model_module)
    assert results.attempted > 4
    assert not results.failed
    assert asked == ["sentence-transformers/all-MiniLM-L6-v2"]


def test_problems_are_part_of_the_metadata(tmp_path: Path) -> None:
    path = small_folder(tmp_path / "model", "sequence", LABELS, problem_type="multi_label_classification")
    assert cli.main(["optimize", str(path), "-o", str(tmp_path / "packed.onnx"), "--no-verify"]) == 0
    with padfree.Model(tmp_path / "packed.onnx") as model:
        assert json.loads(json.dumps(model.info.to_dict()))["problem"] == "multi_label_classification"


def test_a_terminal_shows_how_far_a_model_is_that_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere, as in a service or a notebook, nothing is printed."""
    with padfree.Model(folder):
        assert capsys.readouterr() == ("", "")
    shown = io.StringIO()
    monkeypatch.setattr(
        "padfree.builder.model.Console", lambda **_: Console(file=shown, force_terminal=True, width=100)
    )
    with padfree.Model(folder):
        assert "rewriting the graph" in shown.getvalue()
        assert "comparing it with the original" in shown.getvalue()
