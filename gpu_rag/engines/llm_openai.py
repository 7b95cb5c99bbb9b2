"""Engine `openai`: any server with the chat completions API.

A bounded number of requests is with the server at once, and each has a deadline that covers the client's own retries (429,
5xx, lost connections; with its backoff). A request that fails in the end fails alone; only if not one of a call's requests
reaches the server is the engine taken to be dead.

Spans are scored by vLLM servers alone, and only with `llm.tokenizer`, which tells where in the prompt a span's tokens are.
"""

import asyncio
import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_api import UnreadableAnswerError, answered, refused, request_body
from gpu_rag.engines.llm_files import model_folder
from gpu_rag.engines.llm_prompt import ChatTokenizer, EstimatedTokens
from gpu_rag.engines.require import require
from gpu_rag.errors import EngineDeadError, EngineStartError
from gpu_rag.spans import clean_text

_RETRIES = 5  # the client waits 0.5 s, then twice as long each time, 8 s at most, or as the server says
_KEPT_COUNTS = 100_000
_POLL_SECONDS = 1.0

Result = TypeVar("Result")


class OpenAIEngine(CompletionEngine):
    """A model behind a server."""

    def __init__(self, config: LlmConfig) -> None:
        """Ask the server for its models.

        Raises:
            EngineStartError: If it cannot be reached, refuses the key, or does not serve the model.
            MissingDependencyError: If the client library is not installed.
        """
        self._openai = require("openai", extra="openai")
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._counting = asyncio.Semaphore(config.concurrency)
        self._client: Any = self._openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key=os.environ.get(config.api_key_env) or "none",  # the client insists on one
            timeout=config.request_seconds,
            max_retries=_RETRIES,
        )
        card = self._model_card()
        self._vllm = config.api == "vllm" or (config.api == "auto" and card.get("owned_by") == "vllm")
        limit = card.get("max_model_len")
        self.max_context_tokens = min(config.max_context_tokens, limit) if isinstance(limit, int) else config.max_context_tokens
        self._tokenizer = ChatTokenizer(model_folder(config.tokenizer)) if config.tokenizer is not None else None
        self._server_counts = self._tokenizer is None and self._vllm
        self._counts: OrderedDict[tuple[Message, ...], int] = OrderedDict()

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation: by `llm.tokenizer`, else by a vLLM server, else estimated."""
        if self._tokenizer is not None:
            return self._tokenizer.count(conversations)
        if not self._server_counts:
            return EstimatedTokens().count(conversations)
        keys = [tuple(conversation) for conversation in conversations]
        new = [key for key in dict.fromkeys(keys) if key not in self._counts]
        try:
            self._counts.update(zip(new, self._run(self._counted(new)), strict=True))
        except (self._openai.APIError, UnreadableAnswerError):
            self._server_counts = False  # a server that says it is vLLM, without /tokenize
            return EstimatedTokens().count(conversations)
        found = [self._counts[key] for key in keys]
        while len(self._counts) > _KEPT_COUNTS:
            self._counts.popitem(last=False)
        return found

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield completions as they come.

        Raises:
            EngineDeadError: If none of the requests reached the server.
        """
        queue = iter(requests)
        tasks: set[asyncio.Task[tuple[Completion, bool]]] = set()
        unreachable: list[Completion] = []
        try:
            while True:
                free = self._config.concurrency - len(tasks)
                tasks |= {self._loop.create_task(self._answer(request)) for request in itertools.islice(queue, free)}
                if not tasks:
                    break
                done, tasks = self._run(asyncio.wait(tasks, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED))
                heartbeat.beat()  # to wait is no silence: every request has its deadline
                for task in done:
                    completion, reached = task.result()
                    if reached:
                        yield completion
                    else:
                        unreachable.append(completion)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                self._run(asyncio.wait(tasks))
        if unreachable and len(unreachable) == len(requests):
            raise EngineDeadError(f"{self._config.base_url}: {unreachable[0].reason}")
        yield from unreachable

    async def _answer(self, request: GenerationRequest) -> tuple[Completion, bool]:
        """Return a request's completion, and whether the server was reached."""
        seconds = self._config.request_seconds
        try:
            text = await asyncio.wait_for(self._post(request), seconds)
            return answered(request, _parsed(text), self._tokenizer), True
        except (TimeoutError, self._openai.APITimeoutError):
            return Completion(request.id, finish_reason="error", reason=f"no answer within {seconds:g} s"), True
        except self._openai.APIConnectionError as error:
            reason = f"the server cannot be reached: {error.__cause__ or error}"
            return Completion(request.id, finish_reason="error", reason=reason), False
        except self._openai.APIStatusError as error:
            return refused(request, error.status_code, error.body or error.message), True
        except (UnreadableAnswerError, self._openai.APIError) as error:
            return Completion(request.id, finish_reason="error", reason=str(error)), True

    async def _post(self, request: GenerationRequest) -> str:
        body = request_body(request, self._config, vllm=self._vllm)
        response = await self._client.chat.completions.with_raw_response.create(
            model=body.pop("model"), messages=body.pop("messages"), extra_body=body
        )
        text: str = response.http_response.text
        return text

    async def _counted(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        return await asyncio.gather(*(self._count(conversation) for conversation in conversations))

    async def _count(self, conversation: Sequence[Message]) -> int:
        messages = [{"role": message.role, "content": clean_text(message.content)} for message in conversation]
        body = {"model": self._config.model, "messages": messages}
        url = self._config.base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
        async with self._counting:
            answer = await self._client.post(url, body=body, cast_to=object)
        count = answer.get("count") if isinstance(answer, dict) else None
        if not isinstance(count, int):
            raise UnreadableAnswerError(f"{url} gives no count")
        return count

    def _model_card(self) -> dict[str, Any]:
        """Return what the server says of the model."""
        where = self._config.base_url
        try:
            response = self._run(self._client.models.with_raw_response.list())
            listed = _parsed(response.http_response.text)
        except (self._openai.APIError, UnreadableAnswerError) as error:
            raise EngineStartError(f"the server at {where} does not list its models: {error.__cause__ or error}") from error
        entries = listed.get("data") if isinstance(listed, dict) else None
        cards = {card["id"]: card for card in entries or () if isinstance(card, dict) and "id" in card}
        if self._config.model not in cards:
            raise EngineStartError(f"the server at {where} does not serve {self._config.model!r}, but {sorted(cards)[:10]}")
        card: dict[str, Any] = cards[self._config.model]
        return card

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableAnswerError(f"unreadable answer: no JSON, but {text[:60]!r}") from error


__all__ = ["OpenAIEngine"]
