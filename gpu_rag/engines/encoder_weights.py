"""Weights of a BERT model as the packed forward pass reads them.

Matrices are transposed to (in, out), q, k and v stand side by side, and the query part is divided by the root of the
head's width, which attention would otherwise do to every score.

Shape suffixes: D hidden size, F intermediate size, P positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer: `qkv` (D, 3D), `out` (D, D), `up` (D, F), `down` (F, D), with their biases and norms."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    attention_norm: tuple[torch.Tensor, torch.Tensor]
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    output_norm: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class BertWeights:
    """Everything the forward pass reads; `positions` (P, D) has the type embedding added in."""

    words: torch.Tensor
    positions: torch.Tensor
    embedding_norm: tuple[torch.Tensor, torch.Tensor]
    layers: tuple[LayerWeights, ...]
    num_heads: int
    eps: float


def bert_weights(state: Mapping[str, torch.Tensor], *, num_layers: int, num_heads: int, eps: float) -> BertWeights:
    """Return the weights out of a `BertModel` state dict, in float32.

    Raises:
        KeyError: A weight is missing.
    """
    import torch

    def norm(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return state[f"{name}.weight"].float(), state[f"{name}.bias"].float()

    def linear(*names: str) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.cat([state[f"{name}.weight"].float() for name in names])
        return weight.t().contiguous(), torch.cat([state[f"{name}.bias"].float() for name in names])

    def layer(number: int) -> LayerWeights:
        base = f"encoder.layer.{number}"
        qkv, qkv_bias = linear(*(f"{base}.attention.self.{part}" for part in ("query", "key", "value")))
        dim = qkv.shape[0]
        scale = (dim // num_heads) ** -0.5
        qkv[:, :dim] *= scale
        qkv_bias[:dim] *= scale
        out, out_bias = linear(f"{base}.attention.output.dense")
        up, up_bias = linear(f"{base}.intermediate.dense")
        down, down_bias = linear(f"{base}.output.dense")
        attention_norm = norm(f"{base}.attention.output.LayerNorm")
        output_norm = norm(f"{base}.output.LayerNorm")
        return LayerWeights(
            qkv, qkv_bias, out, out_bias, attention_norm, up, up_bias, down, down_bias, output_norm
        )  # fmt: skip

    token_type = state["embeddings.token_type_embeddings.weight"][0].float()
    return BertWeights(
        words=state["embeddings.word_embeddings.weight"].float(),
        positions=state["embeddings.position_embeddings.weight"].float() + token_type,
        embedding_norm=norm("embeddings.LayerNorm"),
        layers=tuple(layer(number) for number in range(num_layers)),
        num_heads=num_heads,
        eps=eps,
    )
