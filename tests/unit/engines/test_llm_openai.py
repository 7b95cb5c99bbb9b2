"""The engine `openai` against a small real HTTP server that speaks the API, well and badly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpu_rag.engines.generation import Completion, GenerationRequest, Message, Sampling, TextGenerator
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_openai import OpenAIEngine
from gpu_rag.errors import EngineDeadError, EngineStartError

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@dataclass
class Server:
    """Answers by the last word of the prompt; remembers what came."""

    url: str = ""
    card: dict[str, Any] = field(default_factory=lambda: {"id": "m", "owned_by": "someone"})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    failed_once: set[str] = field(default_factory=set)
    working: int = 0
    most_working: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any], key: str) -> tuple[int, Any]:
        if path == "/v1/models":
            if key == "Bearer wrong":
                return 401, {"error": {"message": "no such key"}}
            return 200, {"object": "list", "data": [self.card]}
        if path == "/tokenize":
            return 200, {"count": sum(len(message["content"].split()) for message in body["messages"])}
        with self.lock:
            self.bodies.append(body)
        prompt = body["messages"][-1]["content"]
        match prompt.split()[-1]:
            case "busy" if prompt not in self.failed_once:
                self.failed_once.add(prompt)
                return 429, {"error": {"message": "slow down"}}
            case "filtered":
                return 200, chat("", finish_reason="content_filter")
            case "azure":
                return 400, {"error": {"code": "content_filter", "message": "flagged"}}
            case "refused":
                return 200, chat(None, refusal="I cannot help with that.")
            case "html":
                return 200, "<html>It works!</html>"
            case "shape":
                return 200, {"choices": [{"message": "hello"}]}
            case "long":
                return 400, {"error": {"message": "This model's maximum context length is 2048 tokens."}}
            case "bad":
                return 400, {"error": {"message": "schema not supported"}}
            case "cut":
                return 200, chat('{"answer": "', finish_reason="length")
            case "tool":
                return 200, chat("", finish_reason="tool_calls")
            case "hang":
                time.sleep(3)
                return 200, chat("too late")
            case "bare":
                return 200, chat("no", logprobs=[("no", -0.5, [("no", -0.5), ("yes", -1.5), ("ye", -9.0), ("n", -8.0)])])
            case "wrapped":
                tokens = [('{"', 0.0, []), ("choice", 0.0, []), ('":"', 0.0, [])]
                last = ("yes", -0.25, [("yes", -0.25), ("no", -1.25), ("maybe", -4.0)])
                return 200, chat('{"choice":"yes"}', logprobs=[*tokens, last, ('"}', 0.0, [])])
        time.sleep(0.01)
        return 200, chat(json.dumps({"answer": prompt}))


def chat(content: str | None, *, finish_reason: str = "stop", refusal: str | None = None, logprobs: Any = None) -> Any:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": refusal},
        "finish_reason": finish_reason,
    }
    if logprobs is not None:
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": value, "top_logprobs": [{"token": t, "logprob": v} for t, v in top]}
                for token, value, top in logprobs
            ]
        }
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self, body: dict[str, Any]) -> None:
            with state.lock:
                state.working += 1
                state.most_working = max(state.most_working, state.working)
            status, answer = state.answer(self.path, body, self.headers.get("Authorization", ""))
            with state.lock:
                state.working -= 1
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Retry-After", "0.05")
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                pass

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    state.url = f"http://127.0.0.1:{http.server_port}/v1"
    yield state
    http.shutdown()
    http.server_close()


def engine_of(server: Server, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(LlmConfig(engine="openai", model="m", base_url=server.url, **settings))


def request(text: str, **fields: Any) -> GenerationRequest:
    return GenerationRequest(text, (Message("user", text),), Sampling(16, seed=5), **fields)


def completed(engine: OpenAIEngine, *texts: str, **fields: Any) -> dict[str, Completion]:
    return {completion.id: completion for completion in engine.complete([request(text, **fields) for text in texts])}


def test_every_kind_of_answer_is_its_own_requests_alone(server: Server) -> None:
    engine = engine_of(server)
    texts = ["fine", "busy", "filtered", "azure", "refused", "html", "shape", "long", "bad", "cut", "tool", "fine too"]
    done = completed(engine, *texts, schema=SCHEMA)
    assert {text: completion.finish_reason for text, completion in done.items()} == {
        "fine": "stop", "busy": "stop", "filtered": "content_filter", "azure": "content_filter", "refused": "content_filter",
        "html": "error", "shape": "error", "long": "too_long", "bad": "error", "cut": "length", "tool": "error",
        "fine too": "stop",
    }  # fmt: skip
    assert json.loads(done["busy"].text) == {"answer": "busy"}
    assert (done["fine"].prompt_tokens, done["fine"].completion_tokens, done["fine"].cached_tokens) == (11, 7, 4)
    assert done["refused"].reason == "I cannot help with that."
    assert "schema not supported" in done["bad"].reason
    assert "<html>" in done["html"].reason


def test_a_refused_row_is_declined_and_its_neighbours_are_done(server: Server) -> None:
    texts = [f"row {row}" if row != 7 else "row filtered" for row in range(20)]
    generator = TextGenerator(engine_of(server))
    done = generator.generate([request(text, schema=SCHEMA) for text in texts])
    assert {text for text, result in done.items() if result.state == "declined"} == {"row filtered"}
    assert all(done[text].value == {"answer": text} for text in texts if text != "row filtered")


def test_requests_that_fail_give_their_slots_back(server: Server) -> None:
    engine = engine_of(server, concurrency=4)
    failing = [f"{number} {how}" for number, how in enumerate(["bad", "html", "bad", "shape"])]
    done = completed(engine, *failing, *(f"good {number}" for number in range(12)))
    assert [done[text].finish_reason for text in failing] == ["error"] * 4
    assert all(done[f"good {number}"].finish_reason == "stop" for number in range(12))
    assert server.most_working <= 4


def test_a_request_that_hangs_ends_at_its_deadline(server: Server) -> None:
    engine = engine_of(server, request_seconds=0.4, concurrency=2)
    started = time.perf_counter()
    done = completed(engine, "hang", "fine")
    assert time.perf_counter() - started < 2
    assert done["hang"].finish_reason == "error"
    assert done["hang"].reason == "no answer within 0.4 s"
    assert done["fine"].finish_reason == "stop"


def test_a_call_given_up_leaves_nothing_behind(server: Server) -> None:
    engine = engine_of(server, concurrency=2)
    for completion in engine.complete([request("fine"), request("hang")]):
        assert completion.id == "fine"
        break
    assert completed(engine, "next")["next"].finish_reason == "stop"


def test_a_server_that_went_away_is_a_dead_engine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(server)
    monkeypatch.setattr(engine._client, "max_retries", 0)
    engine._client.base_url = "http://127.0.0.1:9/v1/"
    with pytest.raises(EngineDeadError, match="cannot be reached"):
        list(engine.complete([request("a"), request("b")]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "http://127.0.0.1:9/v1"}, "does not list its models"),
        ({"model": "other"}, "does not serve 'other', but \\['m'\\]"),
        ({"api_key_env": "WRONG_KEY"}, "no such key"),
    ],
)
def test_a_server_that_cannot_serve_is_named_at_the_start(
    server: Server, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong")
    monkeypatch.setattr("gpu_rag.engines.llm_openai._RETRIES", 0)
    config = {"engine": "openai", "model": "m", "base_url": server.url, **settings}
    with pytest.raises(EngineStartError, match=message):
        OpenAIEngine(LlmConfig.model_validate(config))


def test_the_portable_form_has_no_fields_of_vllm(server: Server) -> None:
    completed(engine_of(server), "wrapped", choices=("yes", "no"))
    completed(engine_of(server), "fine", schema=SCHEMA)
    choice, schema = server.bodies
    assert "structured_outputs" not in choice
    wanted = {"type": "string", "enum": ["yes", "no"]}
    assert choice["response_format"]["json_schema"]["schema"]["properties"] == {"choice": wanted}
    assert schema["response_format"]["json_schema"] == {"name": "answer", "strict": True, "schema": SCHEMA}
    assert (schema["temperature"], schema["seed"], schema["max_completion_tokens"]) == (0.0, 5, 16)


def test_without_a_grammar_nothing_is_constrained(server: Server) -> None:
    engine = engine_of(server, grammar=False)
    completed(engine, "fine", schema=SCHEMA)
    completed(engine, "bare", choices=("yes", "no"))
    assert not any({"response_format", "structured_outputs"} & body.keys() for body in server.bodies)


def test_choices_and_their_logprobs_are_read_in_both_forms(server: Server) -> None:
    wrapped = completed(engine_of(server), "wrapped", choices=("yes", "no"))["wrapped"]
    assert wrapped.text == "yes"
    assert wrapped.choice_logprobs == pytest.approx({"yes": -0.3132617, "no": -1.3132617})
    server.card["owned_by"] = "vllm"
    bare = completed(engine_of(server), "bare", choices=("yes", "no"))["bare"]
    assert bare.text == "no"
    assert bare.choice_logprobs == pytest.approx({"no": -0.3132617, "yes": -1.3132617})
    assert server.bodies[-1]["structured_outputs"] == {"choice": ["yes", "no"]}


def test_a_vllm_server_counts_tokens_and_states_its_context(server: Server) -> None:
    conversation = [Message("system", "be brief"), Message("user", "one two three")]
    estimated = engine_of(server).count_tokens([conversation])
    assert estimated[0] >= len("be briefone two three") // 2
    server.card |= {"owned_by": "vllm", "max_model_len": 100}
    engine = engine_of(server)
    assert engine.count_tokens([conversation, conversation, [Message("user", "x")]]) == [5, 5, 1]
    assert engine.max_context_tokens == 100
    assert engine_of(server, max_context_tokens=50).max_context_tokens == 50
