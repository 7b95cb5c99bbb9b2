"""Text encoder: texts in, unit vectors out, the same bits for a text whatever stands beside it.

The contract (`Encoder`), its results, its config, and `open_encoder`. Two implementations:
`encoder_bert.BertEncoder` (own forward pass over packed tiles, for BERT with mean pooling on the CPU) and
`encoder_st.SentenceTransformerEncoder` (any sentence-transformers model, and CUDA). The model's own modules
decide which one, never its name. torch, transformers and sentence-transformers are imported at use.

Source: Reimers and Gurevych 2019, arXiv:1908.10084; Wang et al. 2020, arXiv:2002.10957 (MiniLM).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag.engines.encoder_files import BUNDLED_MODEL, encoder_identity, model_folder
from gpu_rag.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

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
    model: str = BUNDLED_MODEL
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
    from gpu_rag.engines.encoder_bert import BertEncoder
    from gpu_rag.engines.encoder_st import SentenceTransformerEncoder

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool forks badly and fights the tile workers
    device = _resolve_device(config.device)
    model = load_model(config, device)
    _apply_limit(model, config.max_tokens)
    takes = BertEncoder if device == "cpu" and BertEncoder.takes(model) else SentenceTransformerEncoder
    return takes(model, identity=encoder_identity(config), query_instruction=config.query_instruction)


def load_model(config: EncoderConfig, device: str) -> SentenceTransformer:
    """Return the sentence-transformers model that `config` names, in evaluation mode, float32, on `device`.

    Raises:
        MissingDependencyError: A library or the bundled model is not installed.
        ConfigError: The model does not load.
    """
    folder = model_folder(config.model)
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingDependencyError(f"the encoder needs sentence-transformers: {EXTRA_HINT} ({error})") from error
    try:
        with _quiet():
            model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(f"encoder.model={config.model!r} does not load: {error}") from error
    model.eval()
    return model


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


def _apply_limit(model: SentenceTransformer, max_tokens: int | None) -> int:
    """Set the model's limit to `max_tokens` (None keeps its own), and return it.

    Raises:
        ConfigError: Below 3 (two are special tokens), above the model's positions, or the model states no limit.
    """
    positions = getattr(getattr(getattr(model[0], "auto_model", None), "config", None), "max_position_embeddings", None)
    if max_tokens is not None:
        if max_tokens < 3 or (positions is not None and max_tokens > positions):
            raise ConfigError(f"encoder.max_tokens={max_tokens} must be between 3 and {positions}")
        model.max_seq_length = max_tokens
    limit = model.max_seq_length or positions
    if limit is None:
        raise ConfigError("the encoder's model states no limit: set encoder.max_tokens")
    return int(limit)


def bare_tokenizer(model: SentenceTransformer) -> Any:
    """Return a copy of the model's fast tokenizer that neither cuts nor pads.

    Raises:
        ConfigError: The model has no fast tokenizer.
    """
    from tokenizers import Tokenizer

    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError("the encoder's model has no fast tokenizer (tokenizer.json), so its tokens cannot be counted")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def embedding_dim(model: SentenceTransformer) -> int:
    """Return the length of the model's vectors."""
    for name in ("get_embedding_dimension", "get_sentence_embedding_dimension"):
        dim = getattr(model, name, lambda: None)()
        if dim is not None:
            return int(dim)
    raise ConfigError("the encoder's model does not say how long its vectors are")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the weight-loading progress bar; it is put back as it was."""
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
