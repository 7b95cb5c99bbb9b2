"""The engines on vLLM and the bundled model, for real: in process, behind a server, and through a batch file."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import Generation, GenerationRequest, Message, PromptSpan, TextGenerator
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_batch_file import BatchFileEngine, write_batch
from gpu_rag.engines.llm_files import model_folder
from gpu_rag.engines.llm_openai import OpenAIEngine
from gpu_rag.engines.llm_vllm import VllmEngine
from gpu_rag.errors import EngineDeadError

pytestmark = pytest.mark.vllm

CONTEXT = 2048
CONFIG = LlmConfig(engine="vllm", max_context_tokens=CONTEXT, max_num_seqs=64, retries=0)
SERVED = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "32")
COMPACT = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
# Threads that wait for each other lose seven eighths of their speed as soon as anything else runs on the machine.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
ENTITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["person", "place", "thing"]},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "passages": {"type": "array", "items": {"enum": [f"P{n}" for n in range(1, 6)]}, "minItems": 1, "maxItems": 2},
        "entities": {"type": "array", "items": ENTITY, "maxItems": 1},
    },
    "required": ["passages", "entities"],
    "additionalProperties": False,
}
UNCOMPILABLE = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x"}}, "required": ["a"]}
PLACES = ["Paris", "the Rhine", "Mount Everest", "Ada Lovelace", "the Baltic Sea", "Kyoto", "a steam engine", "the Moon"]


@pytest.fixture(scope="module")
def engine() -> VllmEngine:
    import numba  # noqa: F401  (vLLM's scan of loaded modules trips over its library)
    import torch

    os.environ.update(ONE_THREAD)
    torch.set_num_threads(1)
    return VllmEngine(CONFIG)


@pytest.fixture(scope="module")
def generator(engine: VllmEngine) -> TextGenerator:
    return TextGenerator(engine, retries=0)


def prompt(number: int) -> str:
    place = PLACES[number % len(PLACES)]
    return f"P1: {place} is described in volume {number}.\nP2: It was visited in {1500 + number}.\nName entities and passages as JSON."


def asked(
    generator: TextGenerator, number: int, text: str | None = None, tokens: int = 128, **fields: Any
) -> GenerationRequest:
    text = prompt(number) if text is None else text
    return GenerationRequest(f"r{number}", (Message("user", text),), generator.sampling(tokens, text), **fields)


def states(results: dict[str, Generation]) -> dict[str, int]:
    found = [result.state for result in results.values()]
    return {state: found.count(state) for state in set(found)}


def test_every_output_of_200_fits_its_schema(engine: VllmEngine, generator: TextGenerator) -> None:
    requests = [asked(generator, number, schema=SCHEMA) for number in range(200)]
    beats = heartbeat.count()
    results = generator.generate(requests)
    assert states(results) == {"ok": 200}
    assert {passage for result in results.values() for passage in result.value["passages"]} <= {f"P{n}" for n in range(1, 6)}
    assert all(" " not in json.dumps(result.value, separators=(",", ":"))[:13] for result in results.values())
    assert not any("\n" in result.completion.text for result in results.values())
    assert heartbeat.count() - beats > 200  # a beat for each completion, and others while outputs grow


def test_without_a_grammar_the_same_prompts_fail(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_grammar", False)
    free = TextGenerator(engine, retries=0)
    results = free.generate([asked(free, number, schema=SCHEMA, tokens=48) for number in range(16)])
    assert states(results).get("ok", 0) < 4


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_one_prompt_parses_at_every_batch_size(generator: TextGenerator, batch: int) -> None:
    requests = [
        GenerationRequest(f"{number}", (Message("user", prompt(3)),), generator.sampling(96, "same"), schema=SCHEMA)
        for number in range(batch)
    ]
    results = generator.generate(requests)
    assert states(results) == {"ok": batch}
    assert len({result.completion.text for result in results.values()}) <= 2  # sums of another batch shape may round otherwise


def test_an_uncompilable_schema_fails_alone(generator: TextGenerator) -> None:
    requests = [asked(generator, n, tokens=96, schema=UNCOMPILABLE if n == 7 else SCHEMA) for n in range(20)]
    results = generator.generate(requests)
    assert states(results) == {"ok": 19, "error": 1}
    assert "vLLM refused the request" in results["r7"].reason
    assert states(generator.generate([asked(generator, 1, schema=SCHEMA)])) == {"ok": 1}


@pytest.mark.parametrize("constrained", [False, True])
def test_the_context_is_used_to_its_last_token(engine: VllmEngine, generator: TextGenerator, constrained: bool) -> None:
    def of_length(tokens: int) -> tuple[Message, ...]:
        empty = engine.count_tokens([[Message("user", "")]])[0]
        return (Message("user", " a" * (tokens - empty)),)

    room = CONTEXT - 8
    messages = {f"{length}": of_length(length) for length in (room - 1, room, room + 1, CONTEXT, CONTEXT + 1)}
    assert engine.count_tokens(list(messages.values())) == [int(name) for name in messages]
    fields: dict[str, Any] = {"choices": ("yes", "no")} if constrained else {}
    requests = [GenerationRequest(name, text, generator.sampling(8, name), **fields) for name, text in messages.items()]
    by_engine = {completion.id: completion.finish_reason for completion in engine.complete(requests)}
    by_generator = {name: result.state for name, result in generator.generate(requests).items()}
    for name in messages:
        fits = int(name) <= room
        assert (by_engine[name] != "too_long") is fits
        assert (by_generator[name] != "too_long") is fits
    last = requests[-1]
    assert [completion.id for completion in engine.complete([last, requests[0]])] == [last.id, requests[0].id]


@pytest.mark.parametrize("marker", ["<think>", "</think>", "Answer:", "{tuple_delimiter}", "<|im_end|>"])
def test_markers_in_passages_and_answers_are_only_text(engine: VllmEngine, generator: TextGenerator, marker: str) -> None:
    text = f"before {marker} after"
    schema = {"type": "object", "properties": {"quote": {"enum": [text]}}, "required": ["quote"], "additionalProperties": False}
    request = asked(generator, 0, f"Passage: {text}\nQuote it.", schema=schema)
    chosen = asked(generator, 1, f"Passage: {text}\nQuote it.", choices=(text, "nothing of it"))
    results = generator.generate([request, chosen])
    assert results["r0"].value == {"quote": text}
    assert results["r1"].value in chosen.choices
    (ids,) = engine._tokenizer.prompt_ids([request.messages])
    assert ids.count(engine._tokenizer.end_token or -1) == 2  # after the template's system message and after this one


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder("smollm2"), dtype="float32").eval()


def next_logprobs(reference: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return torch.log_softmax(reference(torch.tensor([ids])).logits[0].double(), dim=-1)


def test_choices_are_scored_as_the_model_itself_does(engine: VllmEngine, generator: TextGenerator, reference: Any) -> None:
    requests = [
        asked(generator, n, f"Is {place} a city? Answer yes or no.", 4, choices=("yes", "no")) for n, place in enumerate(PLACES)
    ]
    results = generator.generate(requests)
    for request in requests:
        (ids,) = engine._tokenizer.prompt_ids([request.messages])
        last = next_logprobs(reference, ids)[-1]
        scores = {choice: float(last[engine._tokenizer.reply_ids(choice)[0]]) for choice in request.choices}
        total = math.log(sum(map(math.exp, scores.values())))
        found = results[request.id].completion.choice_logprobs
        assert found == pytest.approx({choice: score - total for choice, score in scores.items()}, abs=0.15)  # bfloat16
        assert sum(map(math.exp, found.values())) == pytest.approx(1)


def test_a_span_is_scored_as_the_model_itself_does(engine: VllmEngine, generator: TextGenerator, reference: Any) -> None:
    requests = []
    for number, place in enumerate(PLACES):
        question = f"When was {place} visited?"
        text = prompt(number) + " " + question
        span = PromptSpan(0, len(text) - len(question), len(text))
        requests.append(asked(generator, number, text, 1, span=span))
    for _ in range(2):  # the second time the prompts are in the prefix cache
        results = generator.generate(requests)
        assert states(results) == {"ok": len(PLACES)}
        for request in requests:
            (ids,) = engine._tokenizer.prompt_ids([request.messages])
            logprobs = next_logprobs(reference, ids)
            assert request.span is not None
            tokens = engine._tokenizer.span_tokens(request.messages, request.span)
            assert tokens is not None
            expected = sum(float(logprobs[at - 1, ids[at]]) for at in tokens)
            completion = results[request.id].completion
            assert completion.span_tokens == len(tokens)
            assert completion.span_logprob == pytest.approx(expected, rel=0.02, abs=0.3)  # bfloat16


def test_shared_prefixes_are_not_computed_again(generator: TextGenerator) -> None:
    shared = "\n".join(f"P{n}: {prompt(n)}" for n in range(12))
    requests = [asked(generator, n, f"{shared}\nQuestion {n}?", 4) for n in range(3)]
    results = [generator.generate([request])[request.id].completion for request in requests]
    assert results[0].cached_tokens < 64
    block = 128  # tokens, on a CPU; the last one, begun or full, is computed
    assert all(done.cached_tokens > done.prompt_tokens - 2 * block > block for done in results[1:])


def test_sampling_follows_the_seed(engine: VllmEngine) -> None:
    warm = TextGenerator(engine, retries=0, temperature=1.0)
    first, again = (warm.generate([asked(warm, 0, tokens=24)])["r0"].completion.text for _ in range(2))
    other = TextGenerator(engine, retries=0, temperature=1.0, seed=1)
    assert first == again != other.generate([asked(other, 0, tokens=24)])["r0"].completion.text


def test_the_engine_says_what_it_holds(engine: VllmEngine) -> None:
    assert engine.max_context_tokens == CONTEXT
    assert engine.kv_cache_tokens > 10 * CONTEXT
    assert engine.devices == ()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model_folder("smollm2")),
        "--port",
        str(port),
    ]
    command += ["--host", "127.0.0.1", "--served-model-name", "smollm2", "--enable-prompt-tokens-details", *SERVED, *COMPACT]
    with open(tmp_path_factory.mktemp("server") / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=served_environment())
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(timeout=30)


def served_environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return {**inherited, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **ONE_THREAD}


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended while it started"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(url)


def ten_requests(generator: TextGenerator) -> list[GenerationRequest]:
    requests = [asked(generator, number, schema=SCHEMA) for number in range(5)]
    requests += [asked(generator, 5 + n, f"Is {PLACES[n]} a city?", 4, choices=("yes", "no")) for n in range(3)]
    text = prompt(0)
    requests.append(asked(generator, 8, text, 1, span=PromptSpan(0, 20, len(text))))
    requests.append(asked(generator, 9, "Say hello.", 12))
    return requests


def one_by_one(generator: TextGenerator, requests: list[GenerationRequest]) -> dict[str, Generation]:
    """Return what comes out if no request shares a batch: the last bits of vLLM's products depend on a batch's size."""
    return {name: result for request in requests for name, result in generator.generate([request]).items()}


def same(first: dict[str, Generation], second: dict[str, Generation]) -> None:
    """Hold states, values and tokens against each other, and scores to the precision of other threads."""
    assert {n: (r.state, r.value) for n, r in first.items()} == {n: (r.state, r.value) for n, r in second.items()}
    for name, result in first.items():
        one, two = result.completion, second[name].completion
        assert (one.prompt_tokens, one.completion_tokens) == (two.prompt_tokens, two.completion_tokens)
        assert one.choice_logprobs == pytest.approx(two.choice_logprobs, abs=0.15)
        assert one.span_tokens == two.span_tokens
        assert (one.span_logprob is None) is (two.span_logprob is None)
        assert (one.span_logprob or 0.0) == pytest.approx(two.span_logprob or 0.0, rel=0.02)


def test_a_served_model_says_the_same(generator: TextGenerator, server: str) -> None:
    config = LlmConfig(engine="openai", base_url=server, tokenizer="smollm2", retries=0)
    served = TextGenerator(OpenAIEngine(config), retries=0)
    requests = ten_requests(generator)
    same(one_by_one(generator, requests), one_by_one(served, requests))
    assert served.engine.max_context_tokens == CONTEXT


def test_a_served_model_counts_and_refuses_as_it_should(engine: VllmEngine, generator: TextGenerator, server: str) -> None:
    served = OpenAIEngine(LlmConfig(engine="openai", base_url=server))
    conversations = [request.messages for request in ten_requests(generator)]
    assert served.count_tokens(conversations) == engine.count_tokens(conversations)
    requests = [
        asked(generator, 0, schema=UNCOMPILABLE),
        asked(generator, 1, " a" * CONTEXT),
        asked(generator, 2, schema=SCHEMA),
    ]
    ended = {completion.id: completion.finish_reason for completion in served.complete(requests)}
    assert ended == {"r0": "error", "r1": "too_long", "r2": "stop"}


def test_the_portable_form_works_too(generator: TextGenerator, server: str) -> None:
    served = TextGenerator(OpenAIEngine(LlmConfig(engine="openai", base_url=server, api="openai", tokenizer="smollm2")))
    results = served.generate([asked(served, n, f"Is {PLACES[n]} a city?", 24, choices=("yes", "no")) for n in range(3)])
    assert states(results) == {"ok": 3}
    assert all(set(result.completion.choice_logprobs) == {"yes", "no"} for result in results.values())


def test_a_batch_file_makes_the_round_trip(generator: TextGenerator, tmp_path: Path) -> None:
    config = LlmConfig(engine="batch-file", folder=str(tmp_path), tokenizer="smollm2", max_context_tokens=CONTEXT)
    requests = ten_requests(generator)[3:8]
    pending = TextGenerator(BatchFileEngine(config), retries=0).generate(requests)
    assert states(pending) == {"pending": 5}
    file = write_batch(tmp_path, "test", [result.completion.line for result in pending.values()])
    (tmp_path / "answers").mkdir()
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.run_batch",
        "-i",
        str(file),
        "-o",
        str(tmp_path / "answers" / "out.jsonl"),
    ]
    command += ["--model", str(model_folder("smollm2")), "--served-model-name", "smollm2", *SERVED, *COMPACT]
    command += ["--max-num-seqs", "1"]
    subprocess.run(command, check=True, env=served_environment(), capture_output=True, timeout=240)
    answering = BatchFileEngine(config)
    assert answering.problems == []
    same(one_by_one(generator, requests), TextGenerator(answering, retries=0).generate(requests))


def test_an_engine_that_breaks_is_dead_from_then_on(
    engine: VllmEngine, generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._engine, "step", broken)
    monkeypatch.setattr(engine, "_dead", "")
    with pytest.raises(EngineDeadError, match="out of memory"):
        generator.generate([asked(generator, 0)])
    monkeypatch.undo()
    monkeypatch.setattr(engine, "_dead", "vLLM died")
    with pytest.raises(EngineDeadError, match="vLLM died"):
        list(engine.complete([asked(generator, 0)]))
