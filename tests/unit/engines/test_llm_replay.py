"""The engine `replay`: recorded calls come back as they were, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag.engines.generation import Completion, Generation, GenerationRequest, Message, Sampling, TextGenerator, Try
from gpu_rag.engines.llm import LlmConfig, llm_identity
from gpu_rag.engines.llm_replay import ReplayEngine
from gpu_rag.engines.llm_scripted import ScriptedEngine
from gpu_rag.engines.usage import usage_columns
from gpu_rag.errors import ConfigError
from gpu_rag.schemas import USAGE_COLUMNS
from gpu_rag.stage import WORK_COLUMNS
from gpu_rag.store import WorkStore

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
REQUESTS = [
    GenerationRequest("json", (Message("user", "one"),), Sampling(32), schema=SCHEMA),
    GenerationRequest("choice", (Message("user", "two"),), Sampling(8), choices=("yes", "no")),
    GenerationRequest("text", (Message("system", "be brief"), Message("user", "three")), Sampling(8)),
]


def record(folder: Path, *calls: list[Generation], stage: str = "08_answer", shard: int = 0) -> None:
    rows = {
        "work_key": pa.array([f"key {shard} {row}" for row in range(len(calls))]),
        "state": pa.array(["ok"] * len(calls)),
        "reason": pa.array([""] * len(calls)),
    }
    schema = pa.schema([*WORK_COLUMNS, *USAGE_COLUMNS])
    WorkStore(folder, stage, "f", schema).commit(pa.table({**rows, **usage_columns(calls)}))


def replayed(folder: Path, **settings: Any) -> ReplayEngine:
    return ReplayEngine(LlmConfig(engine="replay", model="a/name", folder=str(folder), **settings))


def call(text: str, finish_reason: str = "stop") -> Generation:
    completion = Completion("x", text, finish_reason, "", 5, 6, 2)
    return Generation("x", "ok", "", text, (Try(REQUESTS[2].key, completion, 0.5),))


def test_a_recorded_run_is_replayed_with_all_it_said(tmp_path: Path) -> None:
    recorded = TextGenerator(ScriptedEngine(LlmConfig(engine="scripted"))).generate(REQUESTS)
    record(tmp_path, [recorded["json"], recorded["choice"]], [recorded["text"]])
    again = TextGenerator(replayed(tmp_path)).generate(REQUESTS)
    assert {name: (result.state, result.value) for name, result in again.items()} == {
        name: (result.state, result.value) for name, result in recorded.items()
    }
    assert {name: result.completion for name, result in again.items()} == {
        name: result.completion for name, result in recorded.items()
    }


def test_a_request_that_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, [])
    other = replace(REQUESTS[0], sampling=Sampling(33))
    result = TextGenerator(replayed(tmp_path)).generate([other])["json"]
    assert (result.state, result.reason) == ("error", "not in the recorded run")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_complete_call_counts_before_a_cut_one(tmp_path: Path, order: tuple[int, int]) -> None:
    both = [call("cut", "length"), call("whole")]
    record(tmp_path, *([both[at]] for at in order))
    (completion,) = replayed(tmp_path).complete([REQUESTS[2]])
    assert (completion.text, completion.cached_tokens) == ("whole", 2)


def test_shards_of_stages_without_a_model_are_passed_over(tmp_path: Path) -> None:
    WorkStore(tmp_path, "05_embed", "f", pa.schema(WORK_COLUMNS)).commit(
        pa.table({"work_key": ["k"], "state": ["ok"], "reason": [""]})
    )
    record(tmp_path, [call("whole")])
    assert [c.finish_reason for c in replayed(tmp_path).complete(REQUESTS)] == ["error", "error", "stop"]


def test_the_identity_is_that_of_what_was_recorded(tmp_path: Path) -> None:
    for name in ("one", "copy"):
        record(tmp_path / name, [call("whole")])
    record(tmp_path / "other", [call("something else")])
    identities = {
        name: llm_identity(LlmConfig(engine="replay", folder=str(tmp_path / name))) for name in ("one", "copy", "other")
    }
    assert identities["one"] == identities["copy"] != identities["other"]


def test_a_folder_without_a_work_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no work cache"):
        replayed(tmp_path)
    with pytest.raises(ConfigError, match=r"llm\.folder"):
        ReplayEngine(LlmConfig(engine="replay"))
