"""Text encoder: texts in, unit vectors out, the same bits for a text whatever stands beside it.

The contract (`Encoder`), its results, its config, and `open_encoder`. Two implementations:
`encoder_bert.BertEncoder` (own forward pass over packed tiles, for BERT with mean pooling on the CPU) and
`encoder_st.SentenceTransformerEncoder` (any sentence-transformers model, and CUDA; equal in any batch to 1e-6 only). The
model's own files decide which one, never its name. torch, tokenizers and sentence-transformers are imported at use.

Source: Reimers and Gurevych 2019, arXiv:1908.10084; Wang et al. 2020, arXiv:2002.10957 (MiniLM).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from gpu_rag.engines.encoder_files import BUNDLED_MODEL, encoder_identity, model_folder
from gpu_rag.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from gpu_rag.engines.encoder_bert_files import BertFiles

EXTRA_HINT = "pip install 'gpu-rag[cpu]'"


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts, and how much of each text the encoder saw.

    Attributes:
        vectors: float32 (n, dim), L2-normalised.
        num_tokens: int32 (n,), tokens that the text has (any instruction and special tokens included), before any cut.
        cut_tokens: int32 (n,), tokens beyond the encoder's limit that were not seen; 0 for most.
    """

    vectors: np.ndarray
    num_tokens: np.ndarray
    cut_tokens: np.ndarray


@dataclass(frozen=True)
class TokenVectors:
    """Vectors of the tokens of one text, for late interaction; special tokens are left out.

    Attributes:
        vectors: float32 (t, dim), last-layer vectors, L2-normalised.
        starts: int32 (t,), code-point offset of each token in the text.
        ends: int32 (t,), code-point offset after each token.
    """

    vectors: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class Encoder(Protocol):
    """What the stages need of an encoder.

    Attributes:
        identity: Architecture, dimension and a hash of weights, tokenizer, pooling and limit; equal content gives the
            same identity wherever it is installed. The query instruction is not in it: it belongs to the config of
            the stage that reads it.
        dim: Length of a vector.
        max_tokens: Tokens of a text that are seen, special tokens included.
    """

    identity: str
    dim: int
    max_tokens: int

    def encode(self, texts: Sequence[str], *, kind: Literal["passage", "query"] = "passage") -> Encoded:
        """Return one vector per text, bit-equal alone, in any batch and in any order."""
        ...

    def encode_tokens(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the vectors and offsets of each text's tokens, up to the limit."""
        ...


class EncoderConfig(BaseModel):
    """Which model encodes, where, and up to which length.

    Attributes:
        model: "minilm" (bundled all-MiniLM-L6-v2), else a folder or a hub name for sentence-transformers.
        device: "auto" takes CUDA where torch sees one.
        query_instruction: Put before every query, verbatim; passages never get one.
        dtype: float32 only.
        max_tokens: Cut texts here instead of at the model's own limit, special tokens included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str = Field(default=BUNDLED_MODEL, min_length=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    query_instruction: str = ""
    dtype: Literal["float32"] = "float32"
    max_tokens: PositiveInt | None = None


def open_encoder(config: EncoderConfig) -> Encoder:
    """Return the encoder that `config` names, its weights loaded.

    Raises:
        MissingDependencyError: torch or sentence-transformers, or the bundled model, is not installed.
        ConfigError: The model does not load, has no fast tokenizer, or cannot take `max_tokens`.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool forks badly and fights the tile workers
    identity = encoder_identity(config)
    device = _resolve_device(config.device)
    files = _read_bert(config) if device == "cpu" else None
    if files is not None:
        from gpu_rag.engines.encoder_bert import BertEncoder

        limit = check_limit(config.max_tokens, files.own_limit, files.num_positions)
        return BertEncoder(files, identity=identity, max_tokens=limit, query_instruction=config.query_instruction)
    from gpu_rag.engines.encoder_st import SentenceTransformerEncoder, load_model

    model = load_model(config, device)
    return SentenceTransformerEncoder(model, identity=identity, query_instruction=config.query_instruction)


def check_limit(asked: int | None, own: int | None, positions: int | None) -> int:
    """Return the limit in tokens: the one asked for, else the model's own.

    Raises:
        ConfigError: Below 3 (two are special tokens), above the model's positions, or there is none.
    """
    limit = own if asked is None else asked
    if limit is None:
        raise ConfigError("the encoder's model states no limit: set encoder.max_tokens")
    if limit < 3 or (positions is not None and limit > positions):
        raise ConfigError(f"encoder.max_tokens={limit} must be between 3 and {positions}")
    return limit


def _read_bert(config: EncoderConfig) -> BertFiles | None:
    """Return the model if its files show a BERT that `BertEncoder` computes."""
    try:
        from gpu_rag.engines.encoder_bert_files import read_bert

        return read_bert(model_folder(config.model))
    except ImportError as error:
        raise MissingDependencyError(f"the encoder needs torch, tokenizers and safetensors: {EXTRA_HINT} ({error})") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"encoder.model={config.model!r} does not load: {error}") from error


def _resolve_device(device: str) -> str:
    """Return "cpu" or "cuda", checked against what torch sees."""
    if device == "cpu":
        return device
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"the encoder needs torch: {EXTRA_HINT} ({error})") from error
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ConfigError("encoder.device='cuda', but torch sees no CUDA device")
    return "cuda" if found else "cpu"
