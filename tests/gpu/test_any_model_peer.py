# SPDX-License-Identifier: Apache-2.0
"""The peer that takes any transformers model, with PyTorch's variable-length attention, compiled, in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from padfree.builder.peers.any_model import packed_forward  # noqa: E402
from padfree.builder.peers.packed_models import Tokens  # noqa: E402
from padfree.builder.peers.torch_peers import ways_of  # noqa: E402
from padfree.builder.peers.varlen import varlen_attention  # noqa: E402
from padfree.onnx_tools.verification.agreement import largest_column_error  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.needs_torch]

LENGTHS = (70, 9, 1, 128)
SHARED: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
BFLOAT16 = 3e-2  # relative to a column's root mean square


@pytest.mark.parametrize(
    ("family", "options"),
    [("Bert", {}), ("Qwen3", {"num_key_value_heads": 2, "head_dim": 64}), ("ModernBert", {"local_attention": 32})],
)
def test_compiled_answers_are_those_of_the_padded_model(family: str, options: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch finds no GPU; install one built for CUDA")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHARED, **options)
    model = getattr(transformers, f"{family}Model")(config).eval().cuda()
    kept = torch.arange(max(LENGTHS), device="cuda") < torch.tensor(LENGTHS, device="cuda")[:, None]
    ids = torch.where(kept, torch.randint(3, 100, kept.shape, device="cuda"), 0)
    firsts, positions = np.cumsum([0, *LENGTHS[:-1]]), np.concatenate([np.arange(length) for length in LENGTHS])
    packed = (ids[kept], torch.zeros_like(ids[kept]), *(torch.from_numpy(x).cuda() for x in (positions, firsts)))
    with torch.inference_mode():
        wanted = model(input_ids=ids, attention_mask=kept.long()).last_hidden_state[kept].cpu().numpy()
        forward = packed_forward(torch, varlen_attention(torch, LENGTHS, "cuda"), model.to(torch.bfloat16))
        forward(Tokens(*packed))
        compiled = torch.compile(forward, dynamic=False)
        hidden = compiled(Tokens(*packed))["last_hidden_state"].float().cpu().numpy()

    def run() -> Any:
        with torch.inference_mode():
            return compiled(Tokens(*packed))

    assert largest_column_error(wanted, hidden) <= BFLOAT16
    assert set(ways_of(run)) == {"plain", "CUDA graph"}
