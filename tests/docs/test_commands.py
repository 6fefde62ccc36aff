# SPDX-License-Identifier: Apache-2.0
"""Commands in the documents: the tour is run, every other one is checked against what it calls."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli

from tests.support.folders import WIDTH, write_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("**/*.md")])
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LINKING = [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "notes").glob("*.md"))]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
OPERATORS = {"&&", "|", "||", ";"}
# Programs whose arguments are checked below, and those that are known to take what the documents show.
CHECKED = {"padfree", "pip", "pytest", "cmake", "python", "python3", ".ci/typecheck", ".ci/run", "tests/sanitizers/run"}
PLAIN = {".", "curl", "docker", "kubectl", "ruff", "git", "optimum-cli", "sh", "tritonserver", "uvicorn", "xargs"}


def blocks(document: Path, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Simple commands of a script, without variables set before them; line continuations are followed."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word not in OPERATORS:
                words.append(word)
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []


SCRIPTS = [(path, text) for path in DOCUMENTS for text in blocks(path, "sh")]
COMMANDS = [
    pytest.param(words, id=f"{path.name}: {' '.join(words)}") for path, text in SCRIPTS for words in commands(text)
]


def test_the_documents_have_commands() -> None:
    shown = [" ".join(parameter.values[0]) for parameter in COMMANDS]
    assert {"padfree demo", "pip install .", "pip install .[test]", "pytest"} <= set(shown)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_exists_with_its_arguments(words: list[str]) -> None:
    program, arguments = words[0], words[1:]
    assert program in CHECKED | PLAIN
    if program == "padfree":
        cli.make_parser().parse_args(arguments)
    elif program == "pip":
        check_pip(arguments)
    elif program == "pytest":
        check_pytest(arguments)
    elif program == "cmake":
        check_defines([word[2:] for word in arguments if word.startswith("-D")])
    elif program in ("python", "python3"):
        module = arguments[1] if arguments[0] == "-m" else ""
        if module.startswith(("benchmarks.", "tests.")):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        assert module or (ROOT / arguments[0]).is_file()
    elif "/" in program:
        assert (ROOT / program).is_file()


def check_pip(arguments: list[str]) -> None:
    """`pip install .`: the extras and defines exist."""
    assert arguments[0] == "install"
    for word in arguments[1:]:
        extras = re.fullmatch(r"\.\[(.*)\]", word)
        for extra in extras.group(1).split(",") if extras else []:
            assert re.search(rf"^{extra} = \[", PYPROJECT, re.MULTILINE), f"no extra {extra!r}"
    check_defines([word.removeprefix("cmake.define.") for word in arguments if word.startswith("cmake.define.")])


def check_pytest(arguments: list[str]) -> None:
    """Marks are declared and paths exist."""
    expressions = [arguments[i + 1] for i, word in enumerate(arguments) if word == "-m"]
    for mark in re.findall(r"\w+", " ".join(expressions)):
        assert mark == "not" or f'"{mark}: ' in PYPROJECT, f"no mark {mark!r}"
    for word in arguments:
        assert not word.startswith("tests/") or (ROOT / word).exists()


def check_defines(defines: list[str]) -> None:
    """Our own defines are those of CMakeLists.txt."""
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    for define in defines:
        name = define.partition("=")[0]
        if name.startswith("PADFREE_"):
            assert re.search(rf"^(set|option)\({name} ", text, re.MULTILINE), f"no define {name!r}"


@pytest.mark.parametrize(("path", "text"), [pytest.param(*script, id=script[0].name) for script in SCRIPTS])
def test_a_script_is_valid_shell(path: Path, text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{path.name}: {done.stderr}"


def test_every_define_is_documented() -> None:
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    names = re.findall(r"^(?:set|option)\((PADFREE_\w+) ", text, re.MULTILINE)
    documented = (ROOT / "docs" / "build.md").read_text("utf-8")
    assert len(names) >= 5
    assert [name for name in names if f"| `{name}` |" not in documented] == []


def anchors(document: Path) -> set[str]:
    """What links to a document's headings end with."""
    headings = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKING, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", document.read_text("utf-8")) if "://" not in link]
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.fixture
def tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README's tour starts from: models, a tokenizer, a few texts."""
    data = ROOT / "builder" / "demo" / "data"
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    write_folder(tmp_path / "all-MiniLM-L6-v2", modules=modules)
    (tmp_path / "model").mkdir()
    shutil.copy(data / "bert_tiny.onnx", tmp_path / "model" / "model.onnx")
    shutil.copy(data / "tokenizer.json", tmp_path / "model")
    lines = (data / "texts.txt").read_text("utf-8").splitlines()
    (tmp_path / "texts.txt").write_text("\n".join(sorted(lines, key=len)[:5]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tour_of_the_readme_works_without_a_gpu(tour: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = blocks(ROOT / "README.md", "sh")
    ran = []
    for words in commands("\n".join(script)):
        if words[0] == "padfree" and words[1] in ("optimize", "inspect", "run") and not words[2].endswith(".plan"):
            assert cli.main(words[1:]) == 0, f"{' '.join(words)}: {capsys.readouterr().err}"
            ran.append(words[1])
    assert ran == ["optimize", "run", "optimize", "run", "inspect"]
    with np.load(tour / "vectors.npz") as results:
        assert results["sentence_embedding"].shape == (5, WIDTH)
    with np.load(tour / "out.npz") as results:
        assert results["seq_lens"].shape == (5,)


def test_the_python_of_the_readme_works(tour: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    scope: dict[str, object] = {}
    example = re.sub(r"\b\d{4,}\b", "59", example)  # ids of BERT's vocabulary; the small model's has 930
    exec(compile(example, "README.md", "exec"), scope)
    outputs = scope["outputs"]
    assert isinstance(outputs, dict)
    assert all(len(rows) == 2 for rows in outputs.values())
    assert (tour / "packed.onnx").exists()
