"""Token counts without weights: those of the encoder itself, and an identity that only the tokenizer's files change."""

import shutil
from pathlib import Path

import pytest

from gpu_rag.engines.encoder import EncoderConfig, open_encoder
from gpu_rag.engines.encoder_files import model_folder
from gpu_rag.engines.token_counter import open_token_counter, tokenizer_identity
from gpu_rag.errors import ConfigError

TEXTS = ["", "A", "The tug Ambry was lost.", "\u4f60\u597d\u3002\u4e16\u754c", "word " * 500, "x" * 500, "A title\nits text"]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(model_folder(EncoderConfig().model), folder, dirs_exist_ok=True)
    return folder


def test_counts_are_those_of_the_encoder() -> None:
    encoded = open_encoder(EncoderConfig(device="cpu")).encode(TEXTS)
    assert open_token_counter(EncoderConfig()).count(TEXTS) == encoded.num_tokens.tolist()


def test_starts_are_where_tokens_start() -> None:
    counter = open_token_counter(EncoderConfig())
    assert counter.starts("The tug, lost.").tolist() == [0, 4, 7, 9, 13]
    assert counter.starts("\u4f60\u597d\u3002").tolist() == [0, 1, 2]
    assert counter.starts(" \n").tolist() == []


def test_a_model_that_is_not_plain_is_counted_through_transformers(copied: Path) -> None:
    (copied / "modules.json").unlink()
    assert open_token_counter(EncoderConfig(model=str(copied))).count(TEXTS) == open_token_counter(EncoderConfig()).count(TEXTS)


def test_other_weights_leave_the_identity_and_another_vocabulary_does_not(copied: Path) -> None:
    config = EncoderConfig(model=str(copied))
    assert tokenizer_identity(config) == tokenizer_identity(EncoderConfig())
    (copied / "model.safetensors").write_bytes(b"other")
    assert tokenizer_identity(config) == tokenizer_identity(EncoderConfig())
    with open(copied / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("gull\n")
    assert tokenizer_identity(config) != tokenizer_identity(EncoderConfig())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        open_token_counter(EncoderConfig(model=str(tmp_path)))
