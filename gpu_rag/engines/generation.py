"""Text generation: what is asked of a language model, what comes back, and the one path from raw output to a row's state.

An engine (vLLM, a server, a batch file, ...) is a `CompletionEngine`: it completes requests in any order and says how they
ended. `TextGenerator` stands before it and does, once for all engines, what must not differ between them: it counts tokens
before anything is sent, joins completions by id, parses and checks them, tries a cut or invalid one again, and keeps account.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from gpu_rag.engines import heartbeat
from gpu_rag.engines.output_check import InvalidOutputError, checked_choice, checked_json
from gpu_rag.errors import EngineError, InputError
from gpu_rag.ids import canonical_json, content_hash

PENDING = "pending"  # the engine has the request but not yet its answer; never committed, no attempt is counted
_REASON_CHARS = 300


class Message(NamedTuple):
    """One message of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


class PromptSpan(NamedTuple):
    """Characters [start, end) of one message's content, whose log-likelihood given all before them is wanted."""

    message: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the likeliest.

    Attributes:
        max_tokens: Output budget in tokens.
        temperature: 0 or above.
        top_p: Share of probability mass that is drawn from.
        seed: For engines that draw; a function of the run's seed and the work key.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """One request to a language model.

    Attributes:
        id: Names the request within one call; not part of its content.
        messages: The conversation to be continued.
        sampling: Budget, temperature, seed.
        schema: JSON schema (of the kinds in `output_check`) that the output follows; None for free text or `choices`.
        choices: If given, the output is exactly one of these, and their log-probabilities come with it.
        span: Part of the prompt whose log-likelihood is wanted.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling
    schema: Mapping[str, Any] | None = None
    choices: tuple[str, ...] = ()
    span: PromptSpan | None = None

    def __post_init__(self) -> None:
        """Refuse two constraints at once."""
        if self.schema is not None and self.choices:
            raise ValueError(f"request {self.id}: schema and choices exclude one another")

    @cached_property
    def key(self) -> str:
        """Hash of all that decides the answer, without the id: stable over runs, names the request in files."""
        content = {
            "messages": [list(message) for message in self.messages],
            "sampling": [self.sampling.max_tokens, self.sampling.temperature, self.sampling.top_p, self.sampling.seed],
            "schema": json.dumps(self.schema),  # as it is: the order of properties is the order in which they are written
            "choices": list(self.choices),
            "span": list(self.span) if self.span else None,
        }
        return content_hash("request", canonical_json(content))


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one request.

    Attributes:
        id: The request's.
        text: Raw output.
        finish_reason: `stop` (complete), `length` (budget used up), `content_filter`, `too_long` (the engine refused the
            prompt's length), `error`, or `pending`.
        reason: Why, where it did not stop by itself.
        prompt_tokens: Tokens of the prompt, `completion_tokens` of the output, `cached_tokens` of the prompt that were not
            computed again.
        choice_logprobs: Log-probability of each choice among the choices, natural logarithm, where asked for.
        span_logprob: Sum of the log-probabilities of the span's tokens, where asked for and the engine can tell.
        span_tokens: Tokens of the span.
        line: For a pending request, its line of the batch file.
    """

    id: str
    text: str = ""
    finish_reason: str = "stop"
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    choice_logprobs: Mapping[str, float] = field(default_factory=dict)
    span_logprob: float | None = None
    span_tokens: int = 0
    line: str = ""


class Try(NamedTuple):
    """One time that a request was sent: the key under which it was, its completion, seconds since the call began."""

    key: str
    completion: Completion
    seconds: float


@dataclass(frozen=True, slots=True)
class Generation:
    """One request's result, checked.

    Attributes:
        id: The request's.
        state: `ok, truncated, invalid, declined, too_long, error` as in row states, or `pending`.
        reason: Why it is not ok; for an ok one, what was left out of its value.
        value: Parsed JSON, the choice, or the text; None unless ok.
        tries: Every time it was sent, the last one deciding; none for a prompt that does not fit.
    """

    id: str
    state: str
    reason: str
    value: Any
    tries: tuple[Try, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.state == "ok"

    @property
    def completion(self) -> Completion:
        """The last completion, an empty one if it was never sent."""
        return self.tries[-1].completion if self.tries else Completion(self.id, finish_reason="too_long")


class CompletionEngine(Protocol):
    """A language model behind one interface.

    Attributes:
        max_context_tokens: Prompt and output of one request together.
        kv_cache_tokens: Tokens that can be in work at once, 0 where unknown.
        devices: Names of the accelerators that this process holds for it.
    """

    max_context_tokens: int
    kv_cache_tokens: int = 0
    devices: tuple[str, ...] = ()

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation, the chat template's own included."""

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield one completion per request as they finish, in any order.

        A request that cannot be served yields `finish_reason` error or too_long and leaves the others alone.

        Raises:
            EngineDeadError: If the engine can serve nothing any more.
        """


@dataclass
class Account:
    """What a generator spent: requests and tokens, failures and retries included."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, completion: Completion) -> None:
        """Count one completion."""
        self.requests += 1
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        self.cached_tokens += completion.cached_tokens


class TextGenerator:
    """Generates for stages: token budgets, joining, checking, retries and accounts over one engine."""

    def __init__(
        self, engine: CompletionEngine, *, retries: int = 1, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> None:
        """Stand before an engine.

        Args:
            engine: Where requests go.
            retries: How often a cut or invalid output is asked for again within one call.
            temperature: For `sampling`.
            top_p: For `sampling`.
            seed: The run's.
        """
        self.engine = engine
        self.account = Account()
        self._retries = retries
        self._temperature, self._top_p, self._seed = temperature, top_p, seed

    def sampling(self, max_tokens: int, content: str) -> Sampling:
        """Return the run's sampling with a seed that depends on the run's seed and the request's content alone."""
        seed = int(content_hash("sampling seed", str(self._seed), content)[:8], 16) & 0x7FFFFFFF
        return Sampling(max_tokens, self._temperature, self._top_p, seed)

    def request(
        self, request_id: str, messages: tuple[Message, ...], output_tokens: int, **constraints: Any
    ) -> GenerationRequest:
        """Return a request, its sampling seeded by what it says.

        Args:
            request_id: Names it within the call.
            messages: The prompt.
            output_tokens: Budget of the answer.
            constraints: `schema`, `choices` or `span`.
        """
        content = canonical_json([list(message) for message in messages])
        return GenerationRequest(request_id, messages, self.sampling(output_tokens, content), **constraints)

    def prompt_budget(self, max_tokens: int) -> int:
        """Return how many prompt tokens fit beside an output of `max_tokens`."""
        return self.engine.max_context_tokens - max_tokens

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation, by the engine's own tokenizer and chat template."""
        return self.engine.count_tokens(conversations) if conversations else []

    def generate(self, requests: Sequence[GenerationRequest]) -> dict[str, Generation]:
        """Return the result of each request by its id.

        A prompt that leaves no room for the output within the context is `too_long` and is not sent. An output that was
        cut is asked for again with twice the budget, as far as the context reaches, and an invalid one with another
        seed; both as often as `retries` says.

        Raises:
            InputError: If two requests have one id.
            EngineError: If the engine answers a request twice, or not at all, or one that was not asked.
        """
        started = time.perf_counter()
        by_id = {request.id: request for request in requests}
        if len(by_id) != len(requests):
            raise InputError("two generation requests have the same id")
        tokens = dict(zip(by_id, self.count_tokens([request.messages for request in requests]), strict=True))
        done: dict[str, Generation] = {}
        open_: list[GenerationRequest] = []
        for request in requests:
            budget = self.prompt_budget(request.sampling.max_tokens)
            if tokens[request.id] > budget:
                reason = f"prompt of {tokens[request.id]} tokens, {budget} fit beside {request.sampling.max_tokens} of output"
                done[request.id] = Generation(request.id, "too_long", reason, None)
            else:
                open_.append(request)
        for attempt in range(self._retries + 1):
            again: list[GenerationRequest] = []
            for request, completion in self._completed(open_):
                before = done[request.id].tries if request.id in done else ()
                sent = Try(request.key, completion, time.perf_counter() - started)
                result = done[request.id] = replace(_checked(request, completion), tries=(*before, sent))
                retry = self._retry(request, result, tokens[request.id]) if attempt < self._retries else None
                if retry is not None:
                    again.append(retry)
            open_ = sorted(again, key=lambda request: request.id)
            if not open_:
                break
        return done

    def _completed(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[GenerationRequest, Completion]]:
        """Yield every request with its completion, joined by id."""
        if not requests:
            return
        waiting = {request.id: request for request in requests}
        for completion in self.engine.complete(requests):
            request = waiting.pop(completion.id, None)
            if request is None:
                raise EngineError(f"the engine answered {completion.id!r}, which was not asked or was answered before")
            heartbeat.beat()
            if completion.finish_reason != PENDING:
                self.account.add(completion)
            yield request, completion
        if waiting:
            raise EngineError(f"the engine left {len(waiting)} requests without an answer, first {next(iter(waiting))!r}")

    def _retry(self, request: GenerationRequest, result: Generation, prompt_tokens: int) -> GenerationRequest | None:
        """Return the request to try again with, None where another try would give the same."""
        sampling = request.sampling
        if result.state == "truncated":
            room = self.engine.max_context_tokens - prompt_tokens
            longer = min(2 * sampling.max_tokens, room)
            return replace(request, sampling=replace(sampling, max_tokens=longer)) if longer > sampling.max_tokens else None
        if result.state == "invalid":
            return replace(request, sampling=replace(sampling, seed=(sampling.seed + 1) & 0x7FFFFFFF))
        return None


def _checked(request: GenerationRequest, completion: Completion) -> Generation:
    """Return the completion as a result: its state, and its value if it is what was asked for."""

    def ended(state: str, reason: str = "", value: Any = None) -> Generation:
        return Generation(request.id, state, reason[:_REASON_CHARS], value)

    match completion.finish_reason:
        case "stop":
            pass
        case "length" if request.span is not None and request.schema is None and not request.choices:
            pass  # only the prompt was to be scored
        case "length":
            return ended("truncated", f"output cut at {request.sampling.max_tokens} tokens")
        case "content_filter":
            return ended("declined", completion.reason or "the engine's content filter declined")
        case "too_long" | "pending" as state:
            return ended(state, completion.reason)
        case other:
            return ended("error", completion.reason or f"the engine ended with {other!r}")
    try:
        if request.choices:
            return ended("ok", value=checked_choice(completion.text, request.choices))
        if request.schema is not None:
            value, left_out = checked_json(completion.text, request.schema)
            return ended("ok", "; ".join(left_out), value)
    except InvalidOutputError as error:
        return ended("invalid", str(error))
    return ended("ok", value=completion.text)
