# SPDX-License-Identifier: Apache-2.0
"""The same texts give the same ids and answers through Session, run, embed, rerank, serve, Triton and attach.

The right answers are computed without padfree: by the tokenizers library with the settings written out, and by
onnxruntime on the model as it was exported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import padfree
import pytest
from padfree.builder import cli
from padfree.contract.metadata import Metadata
from padfree.runtime import Session
from padfree.runtime.texts import Text, TextReader
from tokenizers import Tokenizer

from tests.support.folders import ENCODER, ROOT, TOKENIZER, WIDTH, write_folder, write_json, write_small_tokenizer
from tests.support.torch_folders import rename_input, write_torch_folder

Array = npt.NDArray[Any]

CLASSIFIER = ROOT / "tests" / "fixtures" / "optimum" / "bert_sequence_classification.onnx"
SIZES = {"vocab_size": 64, "hidden_size": 16, "max_position_embeddings": 40}
LABELS = {"0": "no", "1": "maybe", "2": "yes"}
MOST = 9
TEXTS = (
    "the cat sat on the mat",
    "a",
    "caf\u00e9 \u2013 rain",
    "rain, and more rain: it rained the whole day and night",
    "A CAT",
)
PAIRS = (
    ("word1 word2", "word3"),
    ("word9", "word4 word5 word6 word7"),
    ("word8 word7 word6 word5 word4 word3", "word2 word1 word2 word3 word4 word5"),
)
EMPTY = ""
TOLERANCE = 5e-5  # for numbers near 1, after two layers in float32
TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
CHAIN = {"pooling_mode": "mean", "embedding_dimension": WIDTH}


@dataclass(frozen=True)
class Kind:
    """A folder's settings, and what they mean, written out."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    side: str = "right"
    prompt: str = ""
    pools_prompt: bool = True
    pairs: bool = False
    types: str = "token_type_ids"
    has_types: bool = True
    types_first: bool = False


KINDS = (
    Kind("plain"),
    Kind("cut left", {"truncation_side": "left"}, side="left"),
    Kind("prompt", prompt="a cat: "),
    Kind("prompt that is not pooled", prompt="a cat: ", pools_prompt=False),
    Kind("prompt and cut left", {"truncation_side": "left"}, side="left", prompt="a cat: "),
    Kind("pairs", pairs=True),
    Kind("pairs cut left", {"truncation_side": "left"}, side="left", pairs=True),
    Kind("pairs without types", {"tokenizer_class": "PreTrainedTokenizerFast"}, pairs=True, has_types=False),
    Kind("pairs by segment_ids", pairs=True, types="segment_ids"),
    Kind("pairs and a prompt", pairs=True, prompt="word7 "),
    Kind("pairs in another order of inputs", pairs=True, types="input_type_ids", types_first=True),
)


@dataclass(frozen=True)
class Model:
    """A kind's files."""

    kind: Kind
    exported: Path
    packed: Path
    tokenizer: Path
    folder: Path

    @property
    def texts(self) -> Sequence[Text]:
        return PAIRS if self.kind.pairs else TEXTS

    @property
    def output(self) -> str:
        return "scores" if self.kind.pairs else "sentence_embedding"


def export(kind: Kind, path: Path) -> Path:
    """Writes the model, with the kind's name of token types and order of inputs."""
    model = onnx.load(str(CLASSIFIER if kind.pairs else ENCODER))
    rename_input(model, "token_type_ids", kind.types)
    ordered = sorted(model.graph.input, key=lambda item: item.name != kind.types) if kind.types_first else []
    if ordered:
        kept = [onnx.ValueInfoProto.FromString(item.SerializeToString()) for item in ordered]
        del model.graph.input[:]
        model.graph.input.extend(kept)
    onnx.save_model(model, str(path))
    return path


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A kind's folder, packed."""
    kind, scratch = request.param, tmp_path_factory.mktemp("door")
    made = export(kind, scratch / "exported.onnx")
    tokenizer = write_small_tokenizer(scratch / "small.json", 64) if kind.pairs else TOKENIZER
    prompts = {"prompts": {"query": kind.prompt, "none": ""}, "default_prompt_name": "query"} if kind.prompt else {}
    if kind.pairs:
        architecture = {"architectures": ["BertForSequenceClassification"], "id2label": LABELS}
        settings = {"model_type": "CrossEncoder", **prompts}
        more: dict[str, Any] = {"config": {**SIZES, **architecture}, "settings": settings}
    else:
        chain = {**CHAIN, "include_prompt": kind.pools_prompt}
        more = {"modules": [("Pooling", chain)], "settings": prompts, "max_seq_length": MOST}
    folder = write_folder(scratch / "model", model=made, tokenizer=tokenizer, **more)
    settings = {"model_max_length": MOST, "do_lower_case": not kind.pairs, **kind.settings}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **settings})
    if kind.pairs and kind.prompt:  # as sentence-transformers 6 writes a cross-encoder
        write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": TRANSFORMER}])
        write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    assert cli.main(["optimize", str(folder), "-o", str(scratch / "packed.onnx")]) == 0
    return Model(kind, made, scratch / "packed.onnx", tokenizer, folder)


def tokens_of(model: Model, text: Text) -> tuple[list[int], list[int], int]:
    """The ids and types of a text, and the number of tokens of the prompt."""
    kind, tokenizer = model.kind, Tokenizer.from_file(str(model.tokenizer))
    tokenizer.no_padding()
    prompt = len(tokenizer.encode(kind.prompt)) - 1 if kind.prompt else 0
    tokenizer.enable_truncation(MOST, direction=kind.side)
    first, *second = [text] if isinstance(text, str) else text
    found = tokenizer.encode(kind.prompt + first, *second)
    return found.ids, found.type_ids if kind.has_types else [0] * len(found), prompt


def expected_rows(model: Model, texts: Sequence[Text]) -> Array:
    """The answers of the model as it was exported for every text alone."""
    session = ort.InferenceSession(str(model.exported), providers=["CPUExecutionProvider"])
    answers = []
    for text in texts:
        ids, types, prompt = tokens_of(model, text)
        feeds = {"input_ids": ids, model.kind.types: types, "attention_mask": [1] * len(ids)}
        arrays = {name: np.asarray([values], np.int64) for name, values in feeds.items()}
        if model.kind.pairs:
            answers.append(session.run(["logits"], arrays)[0][0])
        else:
            rows = session.run(["last_hidden_state"], arrays)[0][0]
            answers.append(rows[0 if model.kind.pools_prompt else prompt :].mean(0))
    return np.stack(answers)


def by_session(model: Model, texts: Sequence[Text], _: Path) -> Array:
    with Session(model.packed) as session:
        request = TextReader(model.packed, session.metadata).read(texts).request
        columns = [request[session.metadata.ids_input().original_name], request.get(model.kind.types)]
        for at, text in enumerate(texts):
            ids, types, prompt = tokens_of(model, text)
            assert columns[0][at] == ids
            assert columns[1] is None or columns[1][at] == types
            assert "prompt_length" not in request or request["prompt_length"][at] == prompt
        return np.stack(session.run(request)[model.output])


def by_run(model: Model, texts: Sequence[Text], scratch: Path) -> Array:
    lines = [
        {"text": text} if isinstance(text, str) else dict(zip(("query", "text"), text, strict=True)) for text in texts
    ]
    source, output = write_lines(scratch / "in.jsonl", lines), scratch / "out.npz"
    assert cli.main(["run", str(model.packed), "--input", str(source), "-o", str(output)]) == 0
    with np.load(output) as results:
        return np.array(results[model.output])


def by_bulk(model: Model, texts: Sequence[Text], scratch: Path) -> Array:
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ("query", "document")
    lines = [{"text": text} if isinstance(text, str) else dict(zip(names, text, strict=True)) for text in texts]
    source, output = write_lines(scratch / "in.jsonl", lines), scratch / "out"
    command = ["rerank" if model.kind.pairs else "embed", "--input", str(source), "-o", str(output)]
    assert cli.main([*command, "--engine", str(model.packed), "--tokenizers", "1"]) == 0
    (part,) = output.glob("part-*.parquet")
    return np.array(parquet.read_table(part).column("scores" if model.kind.pairs else "embedding").to_pylist())


def by_serve(model: Model, texts: Sequence[Text], _: Path) -> Array:
    pytest.importorskip("starlette")
    from tests.support.http_requests import post
    from tests.support.served_models import Server

    with Server(model.packed, "--processes", "1") as server:
        if not model.kind.pairs:
            return np.array(post(server, "/embed", inputs=list(texts), normalize=False)[1])
        status, answers = post(server, "/predict", inputs=[list(text) for text in texts], raw_scores=True)
        assert status == 200, answers
        by_label = [{one["label"]: one["score"] for one in answer} for answer in answers]
        return np.array([[answer[label] for label in LABELS.values()] for answer in by_label])


def by_triton(model: Model, texts: Sequence[Text], scratch: Path) -> Array:
    """The answers of the Python backend's two models, as the repository configures them, without the server."""
    pytest.importorskip("tritonclient.grpc")
    from padfree.builder.triton import ServingOptions, write_repository
    from padfree.builder.triton.config import read_text
    from padfree.runtime.triton.answers import Answerer, TritonRequest, first_come
    from padfree.runtime.triton.parameters import TokenizerParameters
    from padfree.runtime.triton.texts import TextTokenizer

    write_repository(model.packed, scratch / "models", ServingOptions("m", server="24.11"))
    config = read_text(scratch / "models" / "m_tokenizer" / "config.pbtxt")
    given = {name: {"string_value": value.string_value} for name, value in config.parameters.items()}
    parameters = TokenizerParameters.from_config({"parameters": given})
    tokenizer = TextTokenizer(scratch / "models" / "m_tokenizer" / "1" / parameters.tokenizer, parameters)
    columns = [list(texts)] if isinstance(texts[0], str) else [list(part) for part in zip(*texts, strict=True)]
    tensors = {
        name: np.array([[text.encode()] for text in column], object)
        for name, column in zip(("text", "text_pair"), columns, strict=False)
    }
    step = read_text(scratch / "models" / "m_text" / "config.pbtxt").ensemble_scheduling.step
    wanted = list(step[0].output_map)
    (tokens,) = tokenizer.answer([tokenizer.read(TritonRequest(tensors, wanted))])
    assert isinstance(tokens, dict), tokens
    with Session(model.packed) as session:
        inputs = {name: tokens[name] for name in step[1].input_map}
        (answer,) = Answerer(session, first_come(session.budget), lambda _: None).answer(
            [TritonRequest(inputs, [model.output])]
        )
    assert isinstance(answer, dict), answer
    return answer[model.output]


def by_attach(model: Model, texts: Sequence[Text], scratch: Path) -> Array:
    """The answers of a model of sentence-transformers with the same weights, which would give the same by itself."""
    st: Any = pytest.importorskip("sentence_transformers")
    from padfree.sentence_transformers import attach

    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    folder = write_torch_folder(
        model.folder,
        scratch / "torch",
        model.exported,
        config=small if model.kind.pairs else {},
        tokenizer={"pad_token": "[PAD]"},
    )
    own = (st.CrossEncoder if model.kind.pairs else st.SentenceTransformer)(str(folder), device="cpu")
    attached = attach(own, model.packed)
    assert attached.padfree_output == model.output
    if model.kind.pairs:
        return np.array(attached.predict(list(texts)))
    return np.array(attached.encode(list(texts)))


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


Door = Callable[[Model, Sequence[Text], Path], Array]
DOORS: list[Any] = [  # those that start processes need an extra each, which the README's tests do not have
    *(by_session, by_run, by_triton, by_bulk, by_serve),
    pytest.param(by_attach, marks=pytest.mark.needs_torch),
]


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_answers(model: Model, door: Door, tmp_path: Path) -> None:
    found = door(model, model.texts, tmp_path)
    np.testing.assert_allclose(found, expected_rows(model, model.texts), atol=TOLERANCE)


def test_python_gives_the_same_answers(model: Model) -> None:
    """padfree.Model gives the same, except that scores of classes are shares that sum to 1."""
    wanted = expected_rows(model, model.texts)
    with padfree.Model(model.packed) as opened:
        if model.kind.pairs:
            found = np.array([list(one.scores.values()) for one in opened.classify(list(PAIRS))])
            wanted = np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True)
        else:
            found = opened.encode(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


@pytest.mark.parametrize("door", DOORS)
def test_an_empty_text_is_its_special_tokens(model: Model, door: Door, tmp_path: Path) -> None:
    texts: list[Text] = [(EMPTY, "word1"), ("word1", EMPTY)] if model.kind.pairs else [EMPTY, "a"]
    np.testing.assert_allclose(door(model, texts, tmp_path), expected_rows(model, texts), atol=TOLERANCE)


def test_inputs_are_told_apart_by_their_tables(model: Model) -> None:
    with Session(model.packed) as session:
        metadata: Metadata = session.metadata
    types = metadata.types_input()
    assert metadata.ids_input().original_name == "input_ids"
    assert types is not None
    assert types.original_name == model.kind.types
