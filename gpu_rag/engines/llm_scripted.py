"""Engine `scripted`: no model. Answers follow from the request's content alone; faults come on demand.

For tests of everything around a model: what is lost, repeated or waited for when one raises, hangs, dies, cuts its output or
talks nonsense. Which requests fail is decided by their content, so that a row fails again until the plan changes.
"""

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from gpu_rag.engines.generation import Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.errors import EngineDeadError
from gpu_rag.ids import canonical_json

_CHARS_PER_TOKEN = 4
GARBAGE = 'Sure! Here is the JSON: {"entities": ["A",'

Reply = Callable[[GenerationRequest], str | Completion]


class ScriptedEngine(CompletionEngine):
    """A completion engine of arithmetic."""

    def __init__(self, config: LlmConfig, reply: Reply | None = None) -> None:
        """Open as the config's script says.

        Args:
            config: Its `scripted` section is the script.
            reply: The text, or the whole completion, for a request; by default a value that fits its schema.
        """
        self._script = config.scripted
        self.max_context_tokens = config.scripted.max_context_tokens
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # a stand-in for uuids
        self.devices = tuple(part for part in visible.split(",") if part)
        self._reply: Reply = reply or smallest_answer
        self._dead = False
        self.sent: list[GenerationRequest] = []
        if self._script.start == "raise":
            raise RuntimeError("scripted: no memory left on the device")
        if self._script.start == "hang":
            _hang()

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return a token per four characters."""
        return [sum(tokens_of(message.content) for message in conversation) for conversation in conversations]

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield one completion per request, shuffled if so scripted."""
        if self._dead:
            raise EngineDeadError("scripted: the engine died before")
        order = list(requests)
        if self._script.shuffle:
            random.Random(len(order)).shuffle(order)
        for request in order:
            self.sent.append(request)
            if self._script.seconds:
                time.sleep(self._script.seconds)
            yield self._completion(request)

    def _completion(self, request: GenerationRequest) -> Completion:
        prompt_tokens = sum(tokens_of(message.content) for message in request.messages)
        match self._fault(request):
            case "raise":
                raise RuntimeError("scripted: the engine raised")
            case "hang":
                _hang()
            case "die":
                os._exit(1)
            case "truncate":
                return Completion(request.id, '{"', "length", "", prompt_tokens, request.sampling.max_tokens)
            case "garbage":
                return Completion(request.id, GARBAGE, "stop", "", prompt_tokens, tokens_of(GARBAGE))
            case "decline":
                return Completion(request.id, "", "content_filter", "scripted: declined", prompt_tokens, 0)
            case "too_long":
                return Completion(request.id, "", "too_long", "scripted: prompt too long", 0, 0)
            case "error":
                return Completion(request.id, "", "error", "scripted: 429 too many requests", 0, 0)
        answer = self._reply(request)
        if isinstance(answer, Completion):
            return answer
        logprobs = {choice: -float(row) for row, choice in enumerate(request.choices)}
        scored = -1.0 if request.span else None
        return Completion(
            request.id, answer, "stop", "", prompt_tokens, tokens_of(answer), 0, logprobs, scored, 1 if request.span else 0
        )

    def _fault(self, request: GenerationRequest) -> str:
        """Return the fault of a request; a function of its messages, not of its id, seed or budget."""
        content = canonical_json([self._script.salt, [list(message) for message in request.messages]])
        digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "little") / 2**64
        for fault, share in self._script.faults.items():
            draw -= share
            if draw < 0:
                return fault
        return ""


def smallest_answer(request: GenerationRequest) -> str:
    """Return an output that fits the request: its first choice, a small value of its schema, or the prompt's last words."""
    if request.choices:
        return request.choices[0]
    if request.schema is not None:
        return canonical_json(_value(request.schema))
    return request.messages[-1].content[-20:]


def tokens_of(text: str) -> int:
    """Return a token per four characters, rounded up."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def _value(schema: Mapping[str, Any]) -> Any:
    """Return a small value that fits a schema of the kinds this project writes; every array has one item."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", schema.get("properties", {}))
            return {name: _value(schema["properties"][name]) for name in wanted}
        case "array":
            return [_value(schema["items"])] * max(1, schema.get("minItems", 1)) if schema.get("maxItems", 1) else []
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case _:
            return None


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
