"""A BERT model with mean pooling read straight from its sentence-transformers folder.

Neither transformers nor sentence-transformers is imported: they take seconds in every worker. `read_bert` checks in the
folder's files everything that would make sentence-transformers compute anything else, and returns None for whatever it
does not know, so that the caller loads such a model through the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.engines.encoder_weights import BertWeights, bert_weights

_POOLING_KEYS = ("word_embedding_dimension", "embedding_dimension", "include_prompt", "pooling_mode")
_TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# What the Transformer module may set, and to what; another key or value means another computation.
_TRANSFORMER_SETTINGS: dict[str, tuple[Any, ...]] = {
    "do_lower_case": (False, None),
    "transformer_task": ("feature-extraction",),
    "modality_config": (_TEXT_ONLY,),
    "module_output_name": ("token_embeddings",),
}


@dataclass(frozen=True)
class BertFiles:
    """A model as read: weights, a tokenizer that neither cuts nor pads, the model's own limit and its positions."""

    weights: BertWeights
    tokenizer: Any
    own_limit: int | None
    num_positions: int


def read_bert(folder: Path) -> BertFiles | None:
    """Return the model, or None if it is no plain BERT with mean pooling that these files describe in full."""
    from safetensors.torch import load_file

    modules = _modules(folder)
    if modules is None:
        return None
    transformer, pooling = modules
    bert = _json(transformer / "config.json")
    settings = _json(transformer / "sentence_bert_config.json")
    weights_path = transformer / "model.safetensors"
    if not (_is_plain_bert(bert) and _is_mean(_json(pooling / "config.json")) and weights_path.is_file()):
        return None
    if any(value not in _TRANSFORMER_SETTINGS.get(key, ()) for key, value in settings.items() if key != "max_seq_length"):
        return None
    tokenizer = _tokenizer(transformer)
    if tokenizer is None:
        return None
    state = load_file(weights_path)
    if "embeddings.word_embeddings.weight" not in state:
        return None
    weights = bert_weights(
        state,
        num_layers=bert["num_hidden_layers"],
        num_heads=bert["num_attention_heads"],
        eps=float(bert.get("layer_norm_eps", 1e-12)),
    )
    limit = settings.get("max_seq_length")
    return BertFiles(weights, tokenizer, limit, bert["max_position_embeddings"])


def plain_tokenizer(folder: Path) -> Any | None:
    """Return the tokenizer of a model folder, without its weights; None where it is not as plain as `read_bert` asks."""
    modules = _modules(folder)
    return _tokenizer(modules[0]) if modules else None


def _modules(folder: Path) -> tuple[Path, Path] | None:
    """Return the folders of Transformer and Pooling; None for other modules or a prompt of the model's own."""
    path = folder / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    types = [module["type"] for module in modules]
    names = [name.rpartition(".")[2] for name in types if name.startswith("sentence_transformers.")]
    library = _json(folder / "config_sentence_transformers.json")
    prompt = (library.get("prompts") or {}).get(library.get("default_prompt_name") or "", "")
    if len(names) != len(types) or names not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        return None
    if prompt or library.get("truncate_dim") is not None or library.get("model_type") not in (None, "SentenceTransformer"):
        return None
    return folder / modules[0]["path"], folder / modules[1]["path"]


def _is_plain_bert(config: Mapping[str, Any]) -> bool:
    return (
        config.get("model_type") == "bert"
        and config.get("architectures") == ["BertModel"]
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
        and "auto_map" not in config
        and config["num_hidden_layers"] > 0
        and config["hidden_size"] % config["num_attention_heads"] == 0
    )


def _is_mean(pooling: Mapping[str, Any]) -> bool:
    modes = {key for key, value in pooling.items() if key.startswith("pooling_mode_") and value}
    known = all(key in _POOLING_KEYS or key.startswith("pooling_mode_") for key in pooling)
    return known and (modes == {"pooling_mode_mean_tokens"} or (not modes and pooling.get("pooling_mode") == "mean"))


def _tokenizer(folder: Path) -> Any | None:
    """Return the tokenizer; None where transformers would change what tokenizer.json says."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    config = _json(folder / "tokenizer_config.json")
    if not path.is_file() or config.get("tokenizer_class") not in ("BertTokenizer", "BertTokenizerFast"):
        return None
    if (folder / "added_tokens.json").exists() or config.get("additional_special_tokens"):
        return None
    described = _json(path)
    normalizer = described.get("normalizer") or {}
    asked = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    special = [token["content"] for token in described.get("added_tokens", [])]
    named = {config.get(f"{name}_token", f"[{name.upper()}]") for name in ("pad", "unk", "cls", "sep", "mask")}
    if normalizer != asked or set(special) != named:
        return None
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    empty = tokenizer.encode("")
    if empty.tokens != [config.get("cls_token", "[CLS]"), config.get("sep_token", "[SEP]")] or any(empty.type_ids):
        return None
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    """Return the mapping in a file; empty if there is no such file."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value
