"""The engine `batch-file`: lines written, answers of several kinds and qualities read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.engines.generation import Completion, GenerationRequest, Message, Sampling, TextGenerator
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_batch_file import BatchFileEngine, read_answers, write_batch
from gpu_rag.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
REQUESTS = [GenerationRequest(f"r{n}", (Message("user", f"say {n}"),), Sampling(16), schema=SCHEMA) for n in range(6)]


def engine_of(folder: Path, **settings: Any) -> BatchFileEngine:
    return BatchFileEngine(LlmConfig(engine="batch-file", model="m", folder=str(folder), **settings))


def body(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}


def line(custom_id: str, answer: Any, status: int = 200, error: Any = None) -> str:
    response = {"status_code": status, "request_id": "x", "body": answer}
    return json.dumps({"id": "b", "custom_id": custom_id, "response": response, "error": error}) + "\n"


def put(folder: Path, name: str, *lines: str) -> None:
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    (folder / "answers" / name).write_text("".join(lines), encoding="utf-8")


def completions(folder: Path) -> dict[str, Completion]:
    return {completion.id: completion for completion in engine_of(folder).complete(REQUESTS)}


def test_what_has_no_answer_is_pending_with_its_line(tmp_path: Path) -> None:
    done = completions(tmp_path)
    assert {completion.finish_reason for completion in done.values()} == {"pending"}
    entry = json.loads(done["r3"].line)
    assert (entry["custom_id"], entry["method"], entry["url"]) == (REQUESTS[3].key, "POST", "/v1/chat/completions")
    assert entry["body"]["messages"] == [{"role": "user", "content": "say 3"}]
    assert entry["body"]["response_format"]["json_schema"]["schema"] == SCHEMA


def test_a_batch_file_follows_from_its_content(tmp_path: Path) -> None:
    lines = [completion.line for completion in completions(tmp_path).values()]
    first = write_batch(tmp_path, "04_extract", lines)
    again = write_batch(tmp_path, "04_extract", [*reversed(lines), lines[0]])
    assert first == again
    ids = [json.loads(text)["custom_id"] for text in first.read_text(encoding="utf-8").splitlines()]
    assert ids == sorted(request.key for request in REQUESTS)
    assert write_batch(tmp_path, "04_extract", lines[:5]) != first
    assert not list(tmp_path.glob(".*"))


def test_answers_in_any_order_and_file_reach_their_requests(tmp_path: Path) -> None:
    write_batch(tmp_path, "x", [completion.line for completion in completions(tmp_path).values()])
    put(tmp_path, "b.jsonl", *(line(request.key, body(f'{{"n": {request.id[1:]}}}')) for request in reversed(REQUESTS[:3])))
    put(tmp_path, "a.jsonl", line(REQUESTS[4].key, body('{"n": 4}')))
    engine = engine_of(tmp_path)
    results = TextGenerator(engine).generate(REQUESTS)
    assert engine.problems == []
    assert {name: result.value for name, result in results.items() if result.ok} == {
        n: {"n": int(n[1:])} for n in ("r0", "r1", "r2", "r4")
    }
    assert {name for name, result in results.items() if result.state == "pending"} == {"r3", "r5"}
    assert results["r4"].completion.prompt_tokens == 9


def test_failed_lines_are_failures_of_their_rows_alone(tmp_path: Path) -> None:
    keys = [request.key for request in REQUESTS]
    put(
        tmp_path,
        "all.jsonl",
        line(keys[0], {"error": {"message": "maximum context length is 2048 tokens", "code": 400}}, status=400),
        line(keys[1], {"error": {"code": "content_filter", "message": "flagged"}}, status=400),
        json.dumps({"id": "b", "custom_id": keys[2], "response": None, "error": {"code": "batch_expired", "message": "late"}})
        + "\n",
        line(keys[3], {"unexpected": True}),
        line(keys[4], body('{"n": ', "length")),
        line(keys[5], body('{"n": 5}')),
    )
    results = TextGenerator(engine_of(tmp_path), retries=0).generate(REQUESTS)
    assert [results[f"r{n}"].state for n in range(6)] == ["too_long", "declined", "error", "error", "truncated", "ok"]
    assert results["r2"].reason == "late"
    assert "unreadable answer" in results["r3"].reason


def test_what_is_wrong_with_answer_files_is_reported_and_the_rest_kept(tmp_path: Path) -> None:
    write_batch(tmp_path, "x", [completion.line for completion in completions(tmp_path).values()])
    key = REQUESTS[0].key
    put(tmp_path, "a.jsonl", line(key, body('{"n": 1}')), "{broken\n", "\n", json.dumps({"response": {}}) + "\n", "[1]\n")
    put(tmp_path, "b.jsonl", line(key, body('{"n": 1}')), line(key, body('{"n": 2}')), json.dumps({"custom_id": key}) + "\n")
    put(tmp_path, "c.jsonl", line("nobody", body("hello")), line(REQUESTS[1].key, body('{"n": 7}')))
    answers, problems = read_answers(tmp_path)
    assert problems == [
        "a.jsonl, line 2: no JSON: '{broken'",
        "a.jsonl, line 4: no custom_id",
        "a.jsonl, line 5: no custom_id",
        f"b.jsonl, line 2: another answer to {key}; the first one is kept",
        f"b.jsonl, line 3: neither response nor error for {key}",
        "1 answers to requests that no request file here has, first nobody",
    ]
    assert answers[key].body == body('{"n": 1}')
    assert completions(tmp_path)["r1"].text == '{"n": 7}'


def test_a_request_that_failed_may_be_answered_later(tmp_path: Path) -> None:
    key = REQUESTS[0].key
    put(tmp_path, "1.jsonl", line(key, {"error": {"message": "overloaded"}}, status=503))
    assert completions(tmp_path)["r0"].finish_reason == "error"
    put(tmp_path, "2.jsonl", line(key, body('{"n": 0}')))
    assert completions(tmp_path)["r0"].text == '{"n": 0}'
    assert read_answers(tmp_path)[1] == []


def test_the_form_of_lines_is_chosen_by_the_config(tmp_path: Path) -> None:
    asked = GenerationRequest("c", (Message("user", "?"),), Sampling(4), choices=("yes", "no"))
    (ours,) = engine_of(tmp_path).complete([asked])
    (portable,) = engine_of(tmp_path, api="openai").complete([asked])
    assert json.loads(ours.line)["body"]["structured_outputs"] == {"choice": ["yes", "no"]}
    assert "structured_outputs" not in json.loads(portable.line)["body"]
    assert json.loads(ours.line)["custom_id"] == json.loads(portable.line)["custom_id"] == asked.key


def test_a_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"llm\.folder"):
        BatchFileEngine(LlmConfig(engine="batch-file"))
