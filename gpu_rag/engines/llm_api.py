"""The chat completions API as JSON: a request's body, and what a response's body says; for `openai` and `batch-file`.

Two forms. With vLLM's own fields a choice is the bare text (`structured_outputs.choice`) and a span is scored
(`prompt_logprobs`). The portable form has neither: a choice is the one property of an object, which every server with JSON
schemas understands, and spans are not scored. Bodies are read the same way whichever form was asked for.

vLLM lets grammars write free white space unless the server is started with
`--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'`, and adds sampling defaults of the
model's folder unless it is started with `--generation-config vllm`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from gpu_rag.engines.generation import Completion, GenerationRequest
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_choices import choice_logprobs, first_difference
from gpu_rag.engines.llm_prompt import ChatTokenizer
from gpu_rag.spans import clean_text

_TOP_LOGPROBS = 20  # the API's limit
_WRAPPED = re.compile(r'\s*\{\s*"choice"\s*:\s*"')
_TOO_LONG = re.compile(r"context.{0,9}length|maximum model length|prompt is too long|too many tokens", re.IGNORECASE)
_FILTERED = ("content_filter", "content_policy_violation")
_REASON_CHARS = 300


class UnreadableAnswerError(ValueError):
    """A response's body is not what the API says."""


class _Alternative(BaseModel):
    token: str
    logprob: float


class _TokenLogprob(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Logprobs(BaseModel):
    content: list[_TokenLogprob] | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _TokenDetails(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _TokenDetails | None = None


class _Logprob(BaseModel):
    logprob: float


class _Body(BaseModel):
    choices: list[_Choice]
    usage: _Usage | None = None
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


def request_body(request: GenerationRequest, config: LlmConfig, *, vllm: bool) -> dict[str, Any]:
    """Return the body of a request; with `vllm`, in that server's form."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": config.model,
        "messages": [{"role": role, "content": clean_text(content)} for role, content in request.messages],
        "max_completion_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    if request.choices:
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
    if config.grammar and request.choices and vllm:
        body["structured_outputs"] = {"choice": list(request.choices)}
    elif config.grammar and (request.choices or request.schema is not None):
        schema = request.schema if request.schema is not None else _choice_schema(request.choices)
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": schema},
        }
    if request.span and vllm:
        body["prompt_logprobs"] = 0
    return body


def answered(request: GenerationRequest, body: Any, tokenizer: ChatTokenizer | None) -> Completion:
    """Return the completion that a response's body holds.

    Args:
        request: What was asked.
        body: Parsed JSON.
        tokenizer: The model's; without it a span is not found in the scored prompt.

    Raises:
        UnreadableAnswerError: If the body is something else.
    """
    try:
        read = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UnreadableAnswerError(f"unreadable answer at {place or 'its start'}: {first['msg']}") from error
    if not read.choices:
        raise UnreadableAnswerError("unreadable answer: no choices")
    answer = read.choices[0]
    text, finish, reason = answer.message.content or "", answer.finish_reason or "", ""
    if answer.message.refusal:
        finish, reason = "content_filter", answer.message.refusal[:_REASON_CHARS]
    elif finish not in ("stop", "length", "content_filter"):
        finish, reason = "error", f"the server ended the answer with {finish!r}"
    usage = read.usage or _Usage()
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    span_logprob, span_tokens = _span(request, read, tokenizer)
    return Completion(
        request.id,
        _unwrapped(request, text),
        finish,
        reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        cached or 0,
        _choice_logprobs(request, text, answer.logprobs),
        span_logprob,
        span_tokens,
    )


def refused(request: GenerationRequest, status: int, error: Any) -> Completion:
    """Return the completion of a request that was answered by an HTTP status other than 200.

    Args:
        request: What was asked.
        status: HTTP status, 0 if there is none.
        error: The body's `error`, or the body, or a text.
    """
    inner = error.get("error", error) if isinstance(error, Mapping) else error
    code, message = (inner.get("code"), inner.get("message")) if isinstance(inner, Mapping) else (None, inner)
    told = str(message or code or "no reason given")
    reason = (f"HTTP {status}: {told}" if status else told)[:_REASON_CHARS]
    if code in _FILTERED:
        return Completion(request.id, finish_reason="content_filter", reason=reason)
    too_long = code == "context_length_exceeded" or (status in (400, 413) and _TOO_LONG.search(told))
    return Completion(request.id, finish_reason="too_long" if too_long else "error", reason=reason)


def _choice_schema(choices: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": list(choices)}},
        "required": ["choice"],
        "additionalProperties": False,
    }


def _unwrapped(request: GenerationRequest, text: str) -> str:
    """Return the choice that stands in an object, the text as it is if none does."""
    if not request.choices or not _WRAPPED.match(text):
        return text
    try:
        choice = json.loads(text)["choice"]
    except ValueError:
        return text
    return str(choice)


def _choice_logprobs(request: GenerationRequest, text: str, logprobs: _Logprobs | None) -> dict[str, float]:
    """Return the choices' log-probabilities where the output first tells them apart, if a token starts there.

    A choice stands for the longest alternative that begins it. One that is not among the alternatives is at most as likely
    as the least of them, and is taken to be that.
    """
    if len(set(request.choices)) < 2 or logprobs is None:
        return {}
    common, _ = first_difference({choice: [*choice, None] for choice in request.choices})
    rests = {choice: choice[common:] for choice in request.choices}
    if not all(rests.values()):  # one choice begins the others: what ends it has no text
        return {}
    wrapped = _WRAPPED.match(text)
    wanted = (wrapped.end() if wrapped else 0) + common
    at = 0
    for token in logprobs.content or ():
        if at == wanted:
            return _among_alternatives(rests, {entry.token: entry.logprob for entry in (*token.top_logprobs, token)})
        at += len(token.token)
    return {}


def _among_alternatives(rests: Mapping[str, str], logprobs: Mapping[str, float]) -> dict[str, float]:
    tokens: dict[str, str] = {}
    for choice, rest in rests.items():
        begins = [token for token in logprobs if token and (rest.startswith(token) or token.startswith(rest + '"'))]
        tokens[choice] = max(begins, key=len, default=f"not listed: {choice}")
    if not set(tokens.values()) & logprobs.keys():
        return {}
    least = min(logprobs.values())
    return choice_logprobs(tokens, {token: logprobs.get(token, least) for token in tokens.values()})


def _span(request: GenerationRequest, body: _Body, tokenizer: ChatTokenizer | None) -> tuple[float | None, int]:
    if request.span is None or tokenizer is None or body.prompt_logprobs is None:
        return None, 0
    span = tokenizer.span_tokens(request.messages, request.span)
    (ids,) = tokenizer.prompt_ids([request.messages])
    if span is None or len(ids) != len(body.prompt_logprobs):  # the server has another template
        return None, 0
    scores = [(body.prompt_logprobs[at] or {}).get(str(ids[at])) for at in span if at]
    known = [score.logprob for score in scores if score is not None]
    return (sum(known), len(known)) if len(known) == len(scores) else (None, 0)


__all__ = ["UnreadableAnswerError", "answered", "refused", "request_body"]
