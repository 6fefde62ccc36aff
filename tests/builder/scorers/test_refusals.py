# SPDX-License-Identifier: Apache-2.0
"""Errors in a reranker's folder or options are one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from padfree.builder.errors import BuildError
from padfree.builder.folders.folder import read_folder
from padfree.builder.folders.head import HeadOptions
from padfree.builder.scorers.chat_template import ChatTemplate
from padfree.contract.templates import Piece, Template

from tests.support.folders import write_folder, write_json
from tests.support.scorers import write_scorer

YES_NO = ("yes", "no")


def write_changed(tmp_path: Path, name: str = "qwen3", file: str = "tokenizer_config.json", **entries: object) -> Path:
    """Writes a fixture's folder with other entries in one of its files; None removes an entry."""
    folder = write_scorer(name, tmp_path / "model")
    said = json.loads((folder / file).read_text("utf-8")) | entries
    write_json(folder / file, {key: value for key, value in said.items() if value is not None})
    return folder


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(BuildError) as caught:
        read_folder(folder, HeadOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_that_makes_texts_needs_an_answer(tmp_path: Path) -> None:
    said = refusal(write_changed(tmp_path))
    assert "is a decoder (Qwen3ForCausalLM), which generates text" in said
    assert "--scores yes,no" in said


def test_a_folder_without_a_chat_template_needs_one(tmp_path: Path) -> None:
    folder = write_changed(tmp_path, chat_template=None)
    assert "has no chat template" in refusal(folder, scores=YES_NO)
    found = read_folder(folder, HeadOptions(scores=YES_NO, template="{query}: {document}"))
    assert found.text.template == Template(((Piece(field="query"), Piece(": "), Piece(field="document")),))


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("Is {query} answered?", "has no place for the document"),
        ("{document}", "has no place for the query"),
        ("{query} {document} {document}", "has no place for the document, or several"),
        ("{{ messages[0].content }}", "has no place for the query"),
        ("{{ query }} {{ document }} {{ document }}", "has 2 places for the document"),
        ("{{ query | upper }} {{ document }}", "has no place for the query"),
        ("{{ query }} {{ document }} {{ document | length }}", "makes other words of other texts"),
        ("{{ raise_exception('roles must alternate') }}", "cannot be rendered (TemplateError: roles must alternate)"),
        ("{{ query }} {% if %}", "cannot be rendered (TemplateSyntaxError"),
        ("{{ query.__class__.__mro__ }} {{ document }}", "cannot be rendered (SecurityError"),
        ("{{ messages.append(1) }}", "cannot be rendered (SecurityError"),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than 5 s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_templates_without_a_place_for_a_text(tmp_path: Path, template: str, what: str) -> None:
    said = refusal(write_changed(tmp_path), scores=YES_NO, template=template)
    assert what in said
    assert "{query}" in said
    assert "{document}" in said


@pytest.mark.parametrize("names", [("maybe so", "no"), ("yes", "\u4f60\u597d")])
def test_answers_that_are_no_token(tmp_path: Path, names: tuple[str, str]) -> None:
    said = refusal(write_changed(tmp_path), scores=names)
    assert "is no token, the tokenizer splits it into" in said
    assert "name tokens of its vocabulary" in said


def test_a_known_reranker_whose_tokenizer_lacks_the_answer(tmp_path: Path) -> None:
    """Without --scores, the message names the folder as the source of the answers."""
    folder = write_scorer("qwen3", tmp_path / "Qwen3-Reranker-0.6B")
    said = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = said["model"]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if "yes" not in token}
    joined = [(pair.replace(" ", "") if isinstance(pair, str) else "".join(pair), pair) for pair in model["merges"]]
    model["merges"] = [pair for text, pair in joined if "yes" not in text]
    write_json(folder / "tokenizer.json", said)
    text = refusal(folder)
    assert f"{folder}: answers with yes and no: 'yes' is no token" in text
    assert "--scores" in text


def test_one_token_is_no_answer_against_itself(tmp_path: Path) -> None:
    assert "both are the token" in refusal(write_changed(tmp_path), scores=("yes", "yes"))


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    folder = write_changed(tmp_path)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer.json, which tells the answers' tokens" in refusal(folder, scores=YES_NO)


def test_models_whose_last_layer_does_more(tmp_path: Path) -> None:
    """Gemma 2 caps the scores of words."""
    folder = write_changed(tmp_path, "gemma", "config.json", model_type="gemma2")
    assert "how a gemma2 makes scores of words is not known" in refusal(folder, scores=("Yes",))


def test_options_for_models_that_are_no_re_rankers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "embedder")
    assert "--scores is for models that generate text" in refusal(folder, scores=YES_NO)
    assert "--template is for models that compare two texts" in refusal(folder, template="{query} {document}")


def test_a_module_without_an_answer(tmp_path: Path) -> None:
    folder = write_scorer("roles", tmp_path / "model")
    write_json(folder / "1_LogitScore" / "config.json", {"false_token_id": 3})
    assert "'true_token_id' is None, allowed: a token's id" in refusal(folder)


def test_blanks_that_a_template_takes_away() -> None:
    text = "{{ bos_token }}<q>{{ query | trim }}</q>{{ '' if false else document.strip() }} {{ messages|length }}"
    template = ChatTemplate(text, "template", {"bos_token": "<s>"}).template()
    (pieces,) = template.parts
    assert pieces[0] == Piece("<s><q>")
    assert pieces[1] == Piece(field="query", trims=("left", "right"))
    assert pieces[3].trims == ("left", "right")
    assert pieces[1].fill({"query": " a b\n", "document": ""}) == "a b"


def test_parts_for_training_are_rendered_as_they_are() -> None:
    text = (
        "{{ query }}{% generation %} and {% endgeneration %}{{ document }}{% for i in [1, 2] %}{% break %}{% endfor %}"
    )
    (pieces,) = ChatTemplate(text, "template", {}).template().parts
    assert pieces == (Piece(field="query"), Piece(" and "), Piece(field="document"))


def test_pooling_is_not_for_scores(tmp_path: Path) -> None:
    """Vectors came out, and the other option was ignored."""
    folder = write_changed(tmp_path)
    said = refusal(folder, scores=YES_NO, pooling=("mean",))
    assert "--pooling mean with --scores: the first asks for the encoder's numbers, the second for scores" in said
    folder = write_scorer("classes", tmp_path / "classes")
    said = refusal(folder, template="{query} {document}", pooling=("none",))
    assert "--pooling none with --template: the first asks" in said
