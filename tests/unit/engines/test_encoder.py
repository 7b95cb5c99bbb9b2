"""The encoder on the bundled model: equal to sentence-transformers, and blind to a text's neighbours."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_rag.engines.encoder import EncoderConfig, open_encoder
from gpu_rag.engines.encoder_bert import BertEncoder
from gpu_rag.engines.encoder_bert_files import read_bert
from gpu_rag.engines.encoder_files import encoder_identity, model_folder
from gpu_rag.engines.encoder_st import SentenceTransformerEncoder, load_model
from gpu_rag.engines.encoder_tiles import pack_tiles
from gpu_rag.errors import ConfigError, EngineError, InputError

ODD_TEXTS = [
    "",
    " \t\n",
    "\x00\x07\x1b",
    "\x07 bell",
    "A plain sentence about Paris.",
    "  spaces around \n",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji",
    "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e",
    "e\u0301tude \u00e9tude \ufb01n \ufffd \u202e",
    "word " * 2000,
    "x" * 10_000,
    "[CLS] [SEP] [MASK] ##ing",
]


@pytest.fixture(scope="module")
def encoder() -> BertEncoder:
    opened = open_encoder(EncoderConfig(device="cpu"))
    assert isinstance(opened, BertEncoder)
    return opened


@pytest.fixture(scope="module")
def reference() -> Any:
    return load_model(EncoderConfig(), "cpu")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the bundled model's folder, to be changed; the weights are linked."""
    source = model_folder("minilm")
    shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("model.safetensors"))
    (tmp_path / "copy" / "model.safetensors").symlink_to(source / "model.safetensors")
    return tmp_path / "copy"


def _edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def _random_texts(num_texts: int) -> list[str]:
    rng = random.Random(3)
    words = ["alpha", "Paris", "1963", "the", "of", "physics", "\u5317\u4eac", "\u00e9tude", "\U0001f600", "zygote,"]
    lengths = [0, 1, 2, 3, 5, 8, 13, 21, 60, 120, 250]
    return [" ".join(rng.choices(words, k=rng.choice(lengths))) for _ in range(num_texts)]


def test_import_is_light() -> None:
    code = "import sys, gpu_rag.engines.encoder; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_vectors_equal_sentence_transformers(encoder: BertEncoder, reference: Any) -> None:
    texts = ODD_TEXTS + _random_texts(30)
    expected = reference.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    found = encoder.encode(texts)
    assert found.vectors.dtype == np.float32
    assert np.abs(found.vectors - expected).max() < 1e-4


@pytest.mark.parametrize("num_texts", [1, 2, 7, 40])
def test_vector_is_bit_equal_in_any_batch(encoder: BertEncoder, num_texts: int) -> None:
    texts = ODD_TEXTS + _random_texts(40)
    whole = encoder.encode(texts)
    rng = random.Random(num_texts)
    for _ in range(3):
        chosen = rng.sample(range(len(texts)), num_texts)
        part = encoder.encode([texts[place] for place in chosen])
        assert np.array_equal(part.vectors, whole.vectors[chosen])
        assert np.array_equal(part.num_tokens, whole.num_tokens[chosen])


def test_vector_does_not_depend_on_the_number_of_threads(encoder: BertEncoder) -> None:
    import torch

    texts = _random_texts(40)
    before = torch.get_num_threads()
    whole = encoder.encode(texts).vectors
    assert torch.get_num_threads() == before
    try:
        torch.set_num_threads(1)
        assert np.array_equal(encoder.encode(texts).vectors, whole)
    finally:
        torch.set_num_threads(before)


def test_token_vectors_are_bit_equal_in_any_batch(encoder: BertEncoder) -> None:
    texts = ODD_TEXTS + _random_texts(20)
    whole = encoder.encode_tokens(texts)
    for place in random.Random(5).sample(range(len(texts)), 6):
        (alone,) = encoder.encode_tokens([texts[place]])
        assert np.array_equal(alone.vectors, whole[place].vectors)
        assert np.array_equal(alone.starts, whole[place].starts)


def test_token_vectors_equal_sentence_transformers(encoder: BertEncoder, reference: Any) -> None:
    texts = [text for text in ODD_TEXTS if text.strip()]
    expected = reference.encode(texts, output_value="token_embeddings", show_progress_bar=False)
    for found, hidden in zip(encoder.encode_tokens(texts), expected, strict=True):
        rows = hidden.numpy()[1:-1]
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        assert found.vectors.shape == rows.shape
        assert np.abs(found.vectors - rows).max(initial=0.0) < 1e-4


def test_token_offsets_count_code_points_of_the_text(encoder: BertEncoder) -> None:
    text = "  \U0001f600 Caf\u00e9 in Paris"
    (tokens,) = encoder.encode_tokens([text])
    assert [text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)][-3:] == ["Caf\u00e9", "in", "Paris"]
    assert encoder.encode_tokens([""])[0].vectors.shape == (0, encoder.dim)


def test_cut_tokens_are_counted(encoder: BertEncoder) -> None:
    found = encoder.encode(["word " * 254, "word " * 255, "word " * 1000, ""])
    assert found.num_tokens.tolist() == [256, 257, 1002, 2]
    assert found.cut_tokens.tolist() == [0, 1, 746, 0]
    assert found.num_tokens.dtype == found.cut_tokens.dtype == np.int32


def test_equal_texts_get_equal_vectors_and_no_text_none(encoder: BertEncoder) -> None:
    found = encoder.encode(["same", "other", "same"]).vectors
    assert np.array_equal(found[0], found[2])
    assert encoder.encode([]).vectors.shape == (0, encoder.dim)
    assert encoder.encode_tokens([]) == []


@pytest.mark.parametrize("texts", [["fine", "bad \ud83d"], ["fine", None], "one string"])
def test_wrong_text_is_refused_by_place(encoder: BertEncoder, texts: Any) -> None:
    with pytest.raises(InputError, match=r"texts\[1\]|texts must"):
        encoder.encode(texts)
    with pytest.raises(InputError):
        encoder.encode_tokens(texts)


def test_nan_is_an_engine_error(encoder: BertEncoder) -> None:
    broken = open_encoder(EncoderConfig(device="cpu"))
    assert isinstance(broken, BertEncoder)
    broken._weights.layers[2].up_bias[5] = float("nan")
    with pytest.raises(EngineError, match="not finite"):
        broken.encode(["a text"])
    with pytest.raises(EngineError, match="not finite"):
        broken.encode_tokens(["a text"])


def test_query_instruction_stands_before_queries_only() -> None:
    encoder = open_encoder(EncoderConfig(device="cpu", query_instruction="find: "))
    query = encoder.encode(["who"], kind="query")
    assert np.array_equal(query.vectors, encoder.encode(["find: who"]).vectors)
    assert query.num_tokens.tolist() == [5]


def test_max_tokens_cuts_earlier_and_changes_the_identity(encoder: BertEncoder) -> None:
    short = open_encoder(EncoderConfig(device="cpu", max_tokens=8))
    found = short.encode(["a b c d e f", "a b c d e f g h"])
    assert found.cut_tokens.tolist() == [0, 2]
    assert np.array_equal(found.vectors[0], found.vectors[1])
    assert short.identity != encoder.identity
    with pytest.raises(ConfigError, match="max_tokens"):
        open_encoder(EncoderConfig(device="cpu", max_tokens=513))


def test_identity_is_of_content_not_of_place(encoder: BertEncoder, copy: Path) -> None:
    opened = open_encoder(EncoderConfig(model=str(copy), device="cpu"))
    assert opened.identity == encoder.identity
    _edit(copy / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    assert encoder_identity(EncoderConfig(model=str(copy))) != encoder.identity


def test_opening_bert_imports_no_transformers() -> None:
    code = (
        "import sys; from gpu_rag.engines.encoder import EncoderConfig, open_encoder;"
        "open_encoder(EncoderConfig(device='cpu')).encode(['a']);"
        "print(sorted({'transformers', 'sentence_transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_folder_saved_by_the_installed_library_is_read_the_same(encoder: BertEncoder, reference: Any, tmp_path: Path) -> None:
    reference.save_pretrained(str(tmp_path / "saved"))
    opened = open_encoder(EncoderConfig(model=str(tmp_path / "saved"), device="cpu", max_tokens=256))
    assert isinstance(opened, BertEncoder)
    assert np.array_equal(opened.encode(ODD_TEXTS).vectors, encoder.encode(ODD_TEXTS).vectors)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}),
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"model_type": "roberta"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config_sentence_transformers.json", {"prompts": {"x": "passage: "}, "default_prompt_name": "x"}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"}),
    ],
)
def test_what_sentence_transformers_would_compute_otherwise_is_left_to_it(
    copy: Path, file: str, changes: dict[str, Any]
) -> None:
    _edit(copy / file, **changes)
    assert read_bert(copy) is None


def test_other_pooling_is_computed_by_the_generic_adapter(encoder: BertEncoder, copy: Path) -> None:
    _edit(copy / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    opened = open_encoder(EncoderConfig(model=str(copy), device="cpu"))
    assert isinstance(opened, SentenceTransformerEncoder)
    assert np.abs(opened.encode(["Paris"]).vectors - encoder.encode(["Paris"]).vectors).max() > 1e-3


def test_missing_model_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be fetched"):
        open_encoder(EncoderConfig(model=str(tmp_path / "none"), device="cpu"))


def test_broken_model_is_a_config_error(copy: Path) -> None:
    (copy / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="does not load"):
        open_encoder(EncoderConfig(model=str(copy), device="cpu"))


def test_generic_adapter_gives_a_text_the_same_vector_in_any_batch(reference: Any) -> None:
    generic = SentenceTransformerEncoder(reference, identity="generic")
    texts = _random_texts(40)
    whole = generic.encode(texts).vectors
    for chosen in ([0], [3, 9], list(range(39, 0, -3))):
        assert np.abs(generic.encode([texts[place] for place in chosen]).vectors - whole[chosen]).max() < 1e-6


def test_generic_adapter_agrees(encoder: BertEncoder, reference: Any) -> None:
    generic = SentenceTransformerEncoder(reference, identity="generic", query_instruction="find: ")
    texts = ["", "Paris", "Rome", "a longer text about physics", "word " * 300]
    ours, theirs = encoder.encode(texts), generic.encode(texts)
    assert np.abs(ours.vectors - theirs.vectors).max() < 1e-4
    assert ours.cut_tokens.tolist() == theirs.cut_tokens.tolist()
    for left, right in zip(encoder.encode_tokens(texts[:4]), generic.encode_tokens(texts[:4]), strict=True):
        assert np.abs(left.vectors - right.vectors).max(initial=0.0) < 1e-4
        assert np.array_equal(left.starts, right.starts)
    query = encoder.encode(["find: who"]).vectors
    assert np.abs(generic.encode(["who"], kind="query").vectors - query).max() < 1e-4


@pytest.mark.parametrize("num_texts", [0, 1, 500])
def test_tiles_hold_every_text_once_and_are_full(num_texts: int) -> None:
    lengths = np.random.default_rng(0).integers(2, 257, num_texts)
    tiles = pack_tiles(lengths, (64, 128, 256, 512))
    assert sorted(np.concatenate([np.zeros(0, np.int64), *[tile.texts for tile in tiles]])) == list(range(num_texts))
    assert all(lengths[tile.texts].sum() <= tile.rows for tile in tiles)
    if num_texts == 500:
        assert lengths.sum() / sum(tile.rows for tile in tiles) > 0.97
