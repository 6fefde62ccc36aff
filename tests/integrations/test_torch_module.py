# SPDX-License-Identifier: Apache-2.0
"""padfree.torch.Module is called like transformers' models, with a packed file and with an engine."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime import SessionError

from tests.support.folders import ENCODER, write_folder
from tests.support.torch_folders import rename_input, write_torch_folder

pytestmark = pytest.mark.needs_torch
torch: Any = pytest.importorskip("torch")

LENGTHS = (5, 12, 1)


def batch(side: str = "right") -> dict[str, Any]:
    torch.manual_seed(0)
    longest = max(LENGTHS)
    at = torch.arange(longest)
    rows = [at < length if side == "right" else at >= longest - length for length in LENGTHS]
    mask = torch.stack(rows).long()
    ids = torch.randint(5, 900, (len(LENGTHS), longest)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 2) * mask}


def original(folder: Path, kind: str) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(folder).eval()


@pytest.mark.parametrize("kind", ["BertModel", "BertForSequenceClassification", "BertForMaskedLM"])
def test_the_call_of_the_model(saved: Any, packed: Any, kind: str) -> None:
    from padfree.torch import Module

    name = "last_hidden_state" if kind == "BertModel" else "logits"
    folder = saved(kind)
    options = ("--outputs", "logits") if "Sequence" in kind else ("--pooling", "none")
    module, model = Module(packed(folder, *options)), original(folder, kind)
    inputs = batch()
    actual = module(**inputs, return_dict=True)[name]
    with torch.no_grad():
        expected = model(**inputs)[name]
    if expected.dim() == 3:
        kept = inputs["attention_mask"].bool()
        assert not actual[~kept].any()
        actual, expected = actual[kept], expected[kept]
    assert torch.allclose(actual, expected, atol=1e-5)
    again = pickle.loads(pickle.dumps(module)).half()
    assert again(**inputs)[name].dtype == torch.float16


def test_masks_without_order_and_packed_tokens(saved: Any, packed: Any) -> None:
    from padfree.torch import Module

    module = Module(packed(saved(), "--pooling", "none"))
    right, left = batch(), batch("left")
    left["input_ids"][left["attention_mask"].bool()] = right["input_ids"][right["attention_mask"].bool()]
    left["token_type_ids"][left["attention_mask"].bool()] = right["token_type_ids"][right["attention_mask"].bool()]
    rows = module(**right).last_hidden_state[right["attention_mask"].bool()]
    assert torch.allclose(module(**left).last_hidden_state[left["attention_mask"].bool()], rows, atol=1e-6)
    flat = {name: right[name][right["attention_mask"].bool()][None] for name in ("input_ids", "token_type_ids")}
    assert torch.equal(module(**flat, seq_lens=LENGTHS).last_hidden_state[0], rows)


def test_what_a_plan_lacks_is_refused(saved: Any, packed: Any) -> None:
    from padfree.torch import Module

    module = Module(packed(saved(), "--pooling", "none"))
    inputs = batch()
    for changes, named in (
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"attention_mask": torch.ones(3, 1, 12, 12)}, "of the ids' shape"),
        ({"position_ids": inputs["input_ids"]}, "unknown input 'position_ids'"),
        ({"input_ids": inputs["input_ids"] + 10_000}, "allowed 0..929"),
    ):
        with pytest.raises(SessionError, match=named):
            module(**{**inputs, **changes})


def test_token_types_by_another_name(tmp_path: Path) -> None:
    """Callers may use token_type_ids or the exported model's name for it."""
    import onnx
    from padfree.builder import cli
    from padfree.torch import Module

    exported, packed_file = tmp_path / "exported.onnx", tmp_path / "packed.onnx"
    model = onnx.load(str(ENCODER))
    rename_input(model, "token_type_ids", "segment_ids")
    onnx.save_model(model, str(exported))
    assert cli.main(["optimize", str(exported), "-o", str(packed_file)]) == 0
    source = write_folder(tmp_path / "source", model=None)
    bert = original(write_torch_folder(source, tmp_path / "torch", exported), "BertModel")
    module, inputs = Module(packed_file), batch()
    kept = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = bert(**inputs).last_hidden_state[kept]
    types = inputs.pop("token_type_ids")
    for name in ("token_type_ids", "segment_ids"):
        actual = module(**inputs, **{name: types}).last_hidden_state[kept]
        assert torch.allclose(actual, expected, atol=5e-5)
    zeros = module(**inputs, segment_ids=torch.zeros_like(types)).last_hidden_state[kept]
    assert not torch.allclose(zeros, expected, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.needs_tensorrt
def test_a_plan_reads_and_writes_on_the_gpu(saved: Any, tmp_path: Path) -> None:
    from padfree.builder import cli
    from padfree.torch import Module

    folder, plan = saved(), tmp_path / "model.plan"
    assert cli.main(["build", str(folder), "-o", str(plan), "--pooling", "none", "--precision", "fp16"]) == 0
    module, model = Module(plan).to("cuda"), original(folder, "BertModel").to("cuda")
    inputs = {name: value.to("cuda") for name, value in batch().items()}
    kept = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state[kept]
    actual = module(**inputs).last_hidden_state
    assert actual.is_cuda
    assert torch.allclose(actual[kept], expected, atol=0.02 * float(expected.abs().max()))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = module(**inputs).last_hidden_state
    stream.synchronize()
    assert torch.allclose(other, actual, atol=0.02 * float(expected.abs().max()))


@pytest.mark.gpu
@pytest.mark.needs_tensorrt
@pytest.mark.parametrize("options", [(), ("--pooling", "none")], ids=["vectors", "rows"])
def test_sentence_transformers_on_the_gpu(saved: Any, tmp_path: Path, options: tuple[str, ...]) -> None:
    st: Any = pytest.importorskip("sentence_transformers")
    from padfree.builder import cli
    from padfree.sentence_transformers import attach

    folder, plan = saved(), tmp_path / "model.plan"
    assert cli.main(["build", str(folder), "-o", str(plan), "--precision", "fp16", *options]) == 0
    texts = ["a cat", "", "na\u00efve caf\u00e9", *(f"word {number} " * number for number in range(1, 60))]
    original_model = st.SentenceTransformer(str(folder), device="cuda")
    model = attach(st.SentenceTransformer(str(folder), device="cuda"), plan)
    actual = model.encode(texts, convert_to_tensor=True)
    assert actual.is_cuda
    assert float((actual - original_model.encode(texts, convert_to_tensor=True)).abs().max()) < 5e-3
