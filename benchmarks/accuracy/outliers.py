# SPDX-License-Identifier: Apache-2.0
"""Gives a trained BERT outliers like those of published checkpoints, and nearly keeps the function that it has learnt.

In two channels every norm's output is moved by SHIFT, up or down, which the layers that read it undo in their biases.
One feed-forward neuron of every layer becomes INNER for every token, and its output adds PUSH to these channels. This
leaves the function as it is except for two things: that neuron contributed a little, and norms divide by a standard
deviation over all channels, which is now several times as large, by a factor that differs a little from token to token.
Norms get the weights and biases that come closest on sample data.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from .model import Model

CHANNELS, SIGNS = (7, 40), (1.0, -1.0)
SHIFT, INNER, PUSH = 20.0, 400.0, 20.0


@dataclass(frozen=True)
class Site:
    """A norm of a post-norm encoder.

    readers: linear layers that read its output.
    network: inner and output layer of the feed-forward network whose output it reads, if it reads one.
    """

    norm: nn.LayerNorm
    readers: tuple[nn.Linear, ...]
    network: tuple[nn.Linear, nn.Linear] | None = None


def with_outliers(model: Model, ids: torch.Tensor, mask: torch.Tensor) -> Model:
    """A copy with outliers.

    Args:
        model: trained; its hidden size is above CHANNELS.
        ids: sample data [B, S].
        mask: its valid tokens [B, S].
    """
    inputs = norm_inputs(model, ids, mask)
    signs = inputs[0].new_tensor(SIGNS)
    moved = inputs[0].new_zeros(inputs[0].shape[1])
    moved[list(CHANNELS)] = SHIFT * signs
    result = copy.deepcopy(model)
    with torch.no_grad():
        for at, site in enumerate(sites(result)):
            target = normalise(inputs[at], site.norm.eps) * site.norm.weight + site.norm.bias + moved
            if site.network is not None:
                _push(*site.network, signs)
            _fit(site.norm, target, norm_inputs(result, ids, mask)[at])
            for reader in site.readers:
                reader.bias.sub_(reader.weight @ moved.to(reader.weight.dtype))
    return result


def sites(model: Model) -> list[Site]:
    """The norms in the order in which they run."""
    layers = list(model.encoder.encoder.layer)
    queries = [(each.attention.self.query, each.attention.self.key, each.attention.self.value) for each in layers]
    heads = (model.answer, model.depths, model.embedding)
    results = [Site(model.encoder.embeddings.LayerNorm, queries[0])]
    for layer, readers in zip(layers, [*queries[1:], heads], strict=True):
        inner, output = layer.intermediate.dense, layer.output.dense
        results.append(Site(layer.attention.output.LayerNorm, (inner,)))
        results.append(Site(layer.output.LayerNorm, readers, (inner, output)))
    return results


def norm_inputs(model: Model, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """The input [T, H] of every norm on sample data, valid tokens only."""
    results: list[torch.Tensor] = []
    valid = mask.bool()
    hooks = [
        site.norm.register_forward_pre_hook(lambda _, given: results.append(given[0][valid].double()))
        for site in sites(model)
    ]
    with torch.inference_mode():
        model(ids, mask)
    for hook in hooks:
        hook.remove()
    return results


def _push(inner: nn.Linear, output: nn.Linear, signs: torch.Tensor) -> None:
    """Sets the least important neuron to INNER for every token; the output layer turns that into PUSH."""
    neuron = int(output.weight.norm(dim=0).argmin())
    inner.weight[neuron] = 0.0
    inner.bias[neuron] = INNER
    output.weight[:, neuron] = 0.0
    output.weight[list(CHANNELS), neuron] = (PUSH / INNER * signs).to(output.weight.dtype)


def _fit(norm: nn.LayerNorm, target: torch.Tensor, rows: torch.Tensor) -> None:
    """Fits a norm's weights and biases, so that its result for `rows` comes closest to `target` [T, H]."""
    normed = normalise(rows, norm.eps)
    centre, wanted = normed.mean(0), target.mean(0)
    weight = ((normed - centre) * (target - wanted)).mean(0) / (normed - centre).square().mean(0)
    norm.weight.copy_(weight)
    norm.bias.copy_(wanted - weight * centre)


def normalise(rows: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows [T, H] with a mean of 0 and a variance of 1."""
    return nn.functional.layer_norm(rows, rows.shape[1:], eps=eps)
