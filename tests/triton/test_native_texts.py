# SPDX-License-Identifier: Apache-2.0
"""Texts in the native backend, in the real server: answers and errors are those of the Python backend's tokenizer.

The encoder takes texts itself, the ensemble hands them on to it, and NAME_tokenizer gives token ids alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime.triton import TokenizerParameters
from padfree.runtime.triton.answers import Failure, TritonRequest, never
from padfree.runtime.triton.texts import OUTPUTS, TextTokenizer

from tests.support.native_triton import hidden, metadata, pooled_answer, write_model, write_plan
from tests.support.random_texts import random_text
from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Answer, Array, Tensors, call, call_all, refusal, texts
from .native import OUTPUTS as PLAN_OUTPUTS
from .native import assert_right, random_requests, tensors
from .served_kinds import TOKENIZER, VOCABULARY

pytestmark = pytest.mark.needs_triton

MOST = 16
ENCODED = (*PLAN_OUTPUTS, "seq_lens", "truncated")
KINDS: dict[str, dict[str, Any]] = {"cuts": {}, "refuses": {"long_texts": "refuse"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one model that cuts long texts and one that refuses them."""
    folder = tmp_path_factory.mktemp("native_texts")
    engine = {**metadata()["engine"], "tensorrt": "10.99.0"}
    plan = write_plan(folder / "model.plan", "delay_us 1000", engine=engine, coverage={}, hidden_size=2, num_layers=1)
    for name, changes in KINDS.items():
        options = ServingOptions(
            name, backend="padfree", server_tensorrt="10.99.0", tokenizer=TOKENIZER, max_length=MOST, **changes
        )
        tokenizer = write_repository(plan, folder / "models", options).tokenizer
        assert tokenizer is not None
        assert tokenizer.compiled
    for config in (folder / "models").glob("*/config.pbtxt"):
        config.write_text(config.read_text("utf-8").replace("KIND_GPU", "KIND_CPU"), encoding="utf-8")
        assert 'backend: "python"' not in config.read_text("utf-8")
    return folder / "models"


@pytest.fixture(scope="module")
def text_server(
    installed: Path, native_backends: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Serves the repository of the two models."""
    options = ("--model-control-mode=explicit", "--load-model=*", f"--backend-directory={native_backends}")
    with TritonServer(installed, [models], tmp_path_factory.mktemp("server"), *options) as running:
        yield running


def in_python(kind: str) -> TextTokenizer:
    return TextTokenizer(TOKENIZER, TokenizerParameters(MOST, vocabulary=VOCABULARY, **KINDS[kind]))


def requests() -> list[dict[str, Any]]:
    rng = np.random.default_rng(11)
    batch: list[dict[str, Any]] = []
    for _ in range(300):
        count = int(rng.integers(1, 5))
        batch.append({"text": texts(*(random_text(rng) for _ in range(count)))})
        if rng.random() < 0.4:
            batch[-1]["text_pair"] = texts(*(random_text(rng) for _ in range(count)))
        if rng.random() < 0.3:
            batch[-1]["truncate"] = rng.random((count, 1)) < 0.5
    return batch


BAD: list[Tensors] = [
    {"text": texts("fine", b"a \xff")},
    {"text": texts("fine"), "text_pair": texts(b"\xed\xa0\x80")},
    {"text_pair": texts("alone")},
    {"text": texts("one", "x " * 40_000)},
    {"text": texts(*["x" * 65_600] * 16)},
    {"text": texts(*["! " * 30_000] * 2), "truncate": np.array([[True], [False]])},
]


SHORT: list[Tensors] = [{"text": texts("")}, {"text": texts("", ""), "text_pair": texts("", "word " * 90)}]


def assert_same_error(answer: Answer, expected: Failure) -> None:
    """Compares an error with the Python backend's; only Python's codec says which bytes are none of UTF-8."""
    assert isinstance(answer, Exception), answer
    message = re.sub(r"\(.*codec.*\)", "", expected.message)
    assert re.sub(r"\(from byte \d+ on\)", "", str(answer)).endswith(message), (str(answer), expected.message)


def assert_encoded(answer: Answer, tokens: dict[str, Array]) -> None:
    """Compares an answer with what the stand-in of an engine makes of these rows of tokens."""
    assert isinstance(answer, dict), answer
    lengths = tokens["seq_lens"][:, 0]
    rows = [
        (ids[:length], types[:length])
        for ids, types, length in zip(tokens["input_ids"], tokens["token_type_ids"], lengths, strict=True)
    ]
    np.testing.assert_array_equal(answer["pooled"], np.stack([pooled_answer(*row) for row in rows]))
    assert answer["hidden"].shape == (*tokens["input_ids"].shape, 2)
    for found, row in zip(answer["hidden"], rows, strict=True):
        np.testing.assert_array_equal(found[: len(row[0])], hidden(*row))
        assert not found[len(row[0]) :].any()
    for name in ("seq_lens", "truncated"):
        np.testing.assert_array_equal(answer[name], tokens[name])


@pytest.mark.parametrize("model", ["tokenizer", "text", ""])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_and_errors_are_those_of_the_python_backend(
    text_server: TritonServer, protocol: str, kind: str, model: str
) -> None:
    everything, python, refused = [*requests(), *BAD, *SHORT], in_python(kind), 0
    name, outputs = f"{kind}_{model}".strip("_"), OUTPUTS if model == "tokenizer" else ENCODED
    answers = call_all(text_server, protocol, name, everything, outputs)
    for request, answer in zip(everything, answers, strict=True):
        expected = python.answer([python.read(TritonRequest(request, OUTPUTS, never))])[0]
        if isinstance(expected, Failure):
            refused += 1
            assert_same_error(answer, expected)
        elif model == "tokenizer":
            assert isinstance(answer, dict), answer
            for output, values in expected.items():
                np.testing.assert_array_equal(answer[output], values)
        else:
            assert_encoded(answer, dict(expected))
    assert refused >= len(BAD)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_token_ids_between_texts(text_server: TritonServer, protocol: str) -> None:
    """The encoder takes either, each with its own answer; rows of ids are never cut."""
    sequences, python = random_requests(31, 150, longest=MOST), in_python("cuts")
    of_texts = requests()[: len(sequences)]
    mixed = [request for pair in zip(map(tensors, sequences), of_texts, strict=True) for request in pair]
    answers = call_all(text_server, protocol, "cuts", mixed, ENCODED)
    for answer, each in zip(answers[::2], sequences, strict=True):
        assert isinstance(answer, dict), answer
        assert_right({name: answer[name] for name in PLAN_OUTPUTS}, each)
        assert answer["seq_lens"].tolist() == [[len(ids)] for ids, _ in each]
        assert not answer["truncated"].any()
    for answer, request in zip(answers[1::2], of_texts, strict=True):
        expected = python.answer([python.read(TritonRequest(request, OUTPUTS, never))])[0]
        if isinstance(expected, Failure):
            assert_same_error(answer, expected)
        else:
            assert_encoded(answer, dict(expected))


def test_texts_beside_what_they_give(text_server: TritonServer) -> None:
    ids = np.array([[5, 6]], np.int32)
    word, lengths = texts("word"), np.array([[2]], np.int32)
    for request, message in (
        ({"text": word, "input_ids": ids}, "the request has texts and 'input_ids', which texts are turned into"),
        ({"text": word, "token_type_ids": ids}, "the request has texts and 'token_type_ids', which goes with"),
        ({"text": word, "seq_lens": lengths}, "the request has texts and 'seq_lens', which goes with 'input_ids'"),
        ({"seq_lens": lengths}, "inputs 'input_ids' and 'text' are missing; send one row of either"),
        ({"truncate": np.array([[True]])}, "'text' is missing; send one text per row"),
    ):
        bad, good = call_all(text_server, "grpc", "cuts", [request, {"text": word}], ENCODED)
        assert message in str(bad)
        assert isinstance(good, dict)


ONE_TEXT: Tensors = {"text": texts("a word")}
ONE_PAIR: Tensors = {"text": texts("a"), "text_pair": texts("word")}
ONE_ROW: Tensors = {"input_ids": np.array([[2, 5, 6, 3]], np.int32)}


@pytest.mark.parametrize("requests", [[ONE_TEXT] * 2, [ONE_TEXT, ONE_PAIR], [ONE_TEXT, ONE_ROW]])
def test_requests_share_runs_whatever_inputs_they_have(text_server: TritonServer, requests: list[Tensors]) -> None:
    """The server puts only those with the same inputs into one call of the backend."""

    def series(name: str) -> float:
        page = text_server.get("metrics", "metrics")
        return sum(map(float, re.findall(rf'^{name}\{{[^}}]*model="cuts"[^}}]*\}} (\S+)$', page, re.M)))

    names = ("padfree_runs_total", "padfree_sequences_total", "padfree_tokens_total")
    before = [series(name) for name in names]
    answers = call_all(text_server, "grpc", "cuts", requests * 300, ENCODED)
    counted = sum(int(answer["seq_lens"].sum()) for answer in answers if isinstance(answer, dict))
    runs, sequences, tokens = (series(name) - earlier for name, earlier in zip(names, before, strict=True))
    assert sequences == 600
    assert tokens == counted
    assert 0 < runs < 300


@pytest.mark.parametrize(("model", "counting"), [("cuts_tokenizer", "cuts_tokenizer"), ("cuts_text", "cuts")])
def test_texts_that_were_cut_are_counted(text_server: TritonServer, model: str, counting: str) -> None:
    def count() -> float:
        page = text_server.get("metrics", "metrics")
        found = re.search(rf'^padfree_truncated_texts_total\{{.*model="{counting}",.*\}} (\S+)$', page, re.M)
        assert found, page
        return float(found[1])

    before = count()
    call(text_server, "http", model, {"text": texts("word " * 90, "word", "word " * 80)}, ["truncated"])
    assert count() == before + 2


def test_encoders_that_cannot_take_texts_are_refused(text_server: TritonServer, models: Path) -> None:
    compiled = (models / "cuts" / "1" / "tokenizer.compiled.json").read_bytes()
    usual = {"padfree_model": "model.plan", "padfree_tokenizer": "tokenizer.compiled.json", "padfree_max_length": "16"}
    ids, types, seq_lens = metadata()["inputs"]
    boxes = {"name": "bbox", "role": "tokens", "limit": 9, "dtype": "int32"}
    flags = {"name": "truncated", "layout": "per_sequence", "dtype": "bool", "shape": [None, 1]}
    for name, parameters, changes, message in (
        ("long", {"padfree_max_length": "65"}, {}, "'padfree_max_length' is 65, allowed: at most 64"),
        ("no_length", {"padfree_max_length": None}, {}, "parameter 'padfree_max_length' is missing"),
        ("named", {"padfree_ids": "ids"}, {}, "'padfree_ids' is 'ids', the plan's input of ids is 'input_ids'"),
        ("boxes", {}, {"inputs": [ids, types, boxes, seq_lens]}, "texts give no values of the plan's input 'bbox'"),
        ("flags", {}, {"outputs": [flags]}, "the plan's output 'truncated' has the name of an output of texts"),
        ("unknown", {"padfree_texts": "true"}, {}, "unknown parameter 'padfree_texts', allowed: padfree_model"),
        ("small", {"padfree_vocabulary": "100"}, {}, "'padfree_vocabulary' is 100: it is another model's"),
        ("absent", {"padfree_tokenizer": "other.json"}, {}, "other.json cannot be read; write the repository again"),
    ):
        given = {key: value for key, value in {**usual, **parameters}.items() if value is not None}
        folder = write_model(models, name, parameters=given, **changes)
        (folder / "1" / "tokenizer.compiled.json").write_bytes(compiled)
        assert message in refusal(text_server, name), name


def test_a_bare_configuration_is_completed_as_it_is_written(text_server: TritonServer, models: Path) -> None:
    written = json.loads(text_server.get("v2/models/cuts/config"))
    parameters = {name: value["string_value"] for name, value in written["parameters"].items()}
    folder = write_model(models, "bare", parameters=parameters)
    (folder / "1" / "tokenizer.compiled.json").write_bytes(
        (models / "cuts" / "1" / "tokenizer.compiled.json").read_bytes()
    )
    text_server.post("v2/repository/models/bare/load")
    completed = json.loads(text_server.get("v2/models/bare/config"))
    for field in ("input", "output", "max_batch_size"):
        assert completed[field] == written[field], field


def test_damaged_tokenizers_are_refused(text_server: TritonServer, models: Path) -> None:
    folder = models
    config = (folder / "cuts_tokenizer" / "config.pbtxt").read_text("utf-8")
    content = json.loads((folder / "cuts_tokenizer" / "1" / "tokenizer.compiled.json").read_text("utf-8"))
    for name, change, message in (
        ("no_json", None, r"tokenizer\.compiled\.json: damaged \(no JSON at character 12\)"),
        ("newer", {"format": 2}, r"damaged \(format '2', allowed: 1\)"),
        ("frame", {"single": {}}, r"damaged \(what stands around texts does not fit them\)"),
        (
            "ids",
            {"vocabulary": {**content["vocabulary"], "more": 4000}},
            r"has ids up to 4000 \('more'\), 'padfree_voc",
        ),
    ):
        version = folder / name / "1"
        version.mkdir(parents=True)
        text = '{"format": 1' if change is None else json.dumps({**content, **change}, ensure_ascii=False)
        (version / "tokenizer.compiled.json").write_text(text, encoding="utf-8")
        (folder / name / "config.pbtxt").write_text(config.replace("cuts_tokenizer", name), encoding="utf-8")
        assert re.search(message, refusal(text_server, name)), name
