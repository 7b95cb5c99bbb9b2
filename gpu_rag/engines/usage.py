"""What rows cost: the generations of each row as the usage columns of a stage's results, and back for replay."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gpu_rag.engines.generation import Completion, Generation, Try
from gpu_rag.schemas import USAGE_COLUMNS


def usage_columns(calls: Sequence[Sequence[Generation]]) -> dict[str, pa.Array]:
    """Return one array per column of `schemas.USAGE_COLUMNS`, a value per row.

    Args:
        calls: The generations of each row; none for a row that asked nothing.
    """
    rows = [_usage(generations) for generations in calls]
    return {field.name: pa.array([row[field.name] for row in rows], field.type) for field in USAGE_COLUMNS}


def with_usage(results: pa.Table) -> pa.Table:
    """Return results of a stage that may ask a language model with their usage columns: zeros where it asked none."""
    if "calls" in results.column_names:
        return results
    for name, values in usage_columns([()] * results.num_rows).items():
        results = results.append_column(name, values)
    return results


def recorded_completion(request_id: str, call: Mapping[str, Any]) -> Completion:
    """Return the completion that a value of the column `calls` records, for a request of this id."""
    logprobs = {entry["choice"]: entry["logprob"] for entry in call["choice_logprobs"]}
    counted = ("prompt_tokens", "completion_tokens", "cached_tokens", "span_logprob", "span_tokens")
    names = ("text", "finish_reason", "reason", *counted)
    return Completion(request_id, choice_logprobs=logprobs, **{name: call[name] for name in names})


def _usage(generations: Sequence[Generation]) -> dict[str, Any]:
    tries = [sent for generation in generations for sent in generation.tries]
    before_last = [sent.completion for generation in generations for sent in generation.tries[:-1]]
    done = [sent.completion for sent in tries]
    return {
        "llm_calls": len(tries),
        "llm_invalid": len(before_last) + sum(generation.state in ("invalid", "truncated") for generation in generations),
        "tokens_in": sum(c.prompt_tokens for c in done),
        "tokens_out": sum(c.completion_tokens for c in done),
        "tokens_cached": sum(c.cached_tokens for c in done),
        "tokens_retried": sum(c.prompt_tokens + c.completion_tokens for c in before_last),
        "llm_seconds": max((sent.seconds for sent in tries), default=0.0),
        "calls": [_call(sent) for sent in tries],
    }


def _call(sent: Try) -> dict[str, Any]:
    completion = sent.completion
    return {
        "request": sent.key,
        "text": completion.line or completion.text,
        "finish_reason": completion.finish_reason,
        "reason": completion.reason,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "cached_tokens": completion.cached_tokens,
        "choice_logprobs": [{"choice": choice, "logprob": value} for choice, value in completion.choice_logprobs.items()],
        "span_logprob": completion.span_logprob,
        "span_tokens": completion.span_tokens,
    }


__all__ = ["recorded_completion", "usage_columns", "with_usage"]
