# SPDX-License-Identifier: Apache-2.0
"""Commands in the documents: those of the tour are run, all others are checked against the programs that they call."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli

from tests.support.advice import problems
from tests.support.folders import WIDTH
from tests.support.pages import NOTES, page, pages
from tests.support.tour import README, TEXTS, TOUR, blocks, commands, python_example, write_start

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*pages(), *(ROOT / "examples").glob("**/*.md")])
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *PAGES]
LINKING = [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *sorted(NOTES.glob("*.md"))]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
# Programs whose arguments are checked below, and those that are known to accept what the documents show.
CHECKED = {"padfree", "pip", "pytest", "cmake", "python", "python3", ".ci/typecheck", ".ci/run", "tests/sanitizers/run"}
PLAIN = {".", "curl", "cd", "docker", "kubectl", "ruff", "git", "optimum-cli", "sh", "tritonserver", "uvicorn", "xargs"}


SCRIPTS = [(path, text) for path in DOCUMENTS for text in blocks(path, "sh")]
COMMANDS = [
    pytest.param(words, id=f"{path.name}: {' '.join(words)}") for path, text in SCRIPTS for words in commands(text)
]


def test_the_documents_have_commands() -> None:
    shown = [" ".join(parameter.values[0]) for parameter in COMMANDS]
    assert {"git clone ADDRESS padfree", "padfree demo", "pip install .", "pip install .[test]", "pytest"} <= set(shown)


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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_inside_sentences_exist(path: Path) -> None:
    """As in `padfree build FOLDER --precision fp8`: subcommand and options, or everything where files are named."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`(padfree [^`]+)`", prose)]
    assert [(span, problems(span)) for span in spans if problems(span)] == []
    lacking = [
        span for span in spans if span.startswith("padfree triton") and ".plan" in span and "--server" not in span
    ]
    assert lacking == []


def check_pip(arguments: list[str]) -> None:
    """As in `pip install .` and `pip wheel .`: the extras and defines exist."""
    assert arguments[0] in ("install", "wheel")
    for word in arguments[1:]:
        extras = re.fullmatch(r"(?:\.|padfree)\[(.*)\]", word)
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
    documented = page("build").read_text("utf-8")
    assert len(names) >= 5
    assert [name for name in names if f"| `{name}` |" not in documented] == []


def anchors(document: Path) -> set[str]:
    """The ends of links to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKING, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in link]
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the tour starts in."""
    monkeypatch.chdir(write_start(tmp_path))
    return tmp_path


def test_the_tour_works_without_a_gpu(start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = []
    for words in commands("\n".join(block for path in TOUR for block in blocks(path, "sh"))):
        if words[0] == "padfree" and words[1] in ("optimize", "inspect", "run") and not words[2].endswith(".plan"):
            assert cli.main(words[1:]) == 0, f"{' '.join(words)}: {capsys.readouterr().err}"
            ran.append(words[1])
    assert ran == ["optimize", "run", "optimize", "run"]
    with np.load(start / "vectors.npz") as results:
        assert results["sentence_embedding"].shape == (TEXTS, WIDTH)
    with np.load(start / "out.npz") as results:
        assert results["seq_lens"].shape == (TEXTS,)


def test_the_python_of_the_tour_works(start: Path) -> None:
    scope: dict[str, object] = {}
    exec(compile(python_example(), "onnx-files.md", "exec"), scope)
    outputs = scope["outputs"]
    assert isinstance(outputs, dict)
    assert all(len(rows) == 2 for rows in outputs.values())
    assert (start / "packed.onnx").exists()


@pytest.mark.usefixtures("start")
def test_three_lines_of_the_readme_give_vectors() -> None:
    (example,) = blocks(README, "python")
    assert len(list(filter(None, example.splitlines()))) == 3
    scope: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert np.shape(scope["vectors"]) == (2, WIDTH)


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 120


START = ("pip install . && padfree demo", "pip install '.[test]' && pytest")
"""The commands that somebody new runs first."""


def test_ci_begins_with_the_commands_of_the_readme() -> None:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    assert [line for line in lines if "&&" in line and "git clone" not in line] == [*START]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    steps = re.findall(r"""^readme (\d+) "(.*)"$""", script, re.MULTILINE)
    assert steps == [("150", START[0]), ("600", START[1])]
    assert script.index("\nreadme 600") < script.index("\ntime pip install")


def test_ci_knows_why_it_leaves_commands_of_the_tour_out() -> None:
    """Every command on its list is in the tour; some with `padfree optimize` and `padfree run` are left to run."""
    arguments = [shlex.join(words) for path in TOUR for block in blocks(path, "sh") for words in commands(block)]
    spec = importlib.util.spec_from_file_location("stranger", ROOT / ".ci" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    stranger = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stranger)
    assert set(stranger.NOT_RUN) <= set(arguments)
    assert {"optimize", "run"} <= {shlex.split(each)[1] for each in arguments if each not in stranger.NOT_RUN}


def test_the_table_of_extras_is_the_projects() -> None:
    table = re.search(r"^\| extra \|.*\n\|[-|:]+\|\n((?:\|.*\n)+)", page("build").read_text("utf-8"), re.MULTILINE)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group(1).splitlines()]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])]
    section = PYPROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert sorted(listed) == sorted(re.findall(r"^([\w-]+) = \[$", section, re.MULTILINE))
    assert all(re.fullmatch(r"[\d., to]+ [MG]B", row[2]) for row in rows), rows
