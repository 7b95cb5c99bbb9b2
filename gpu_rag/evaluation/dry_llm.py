"""A language model that only counts: what the prompted stages would send, and how much of it an engine has seen before.

The stages' own code writes the prompts; each request is answered with the smallest value that fits it, so that the stages
which read that answer write theirs too. No model is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_rag.engines.generation import Completion, CompletionEngine, GenerationRequest, Message, TextGenerator
from gpu_rag.engines.llm import BUNDLED_LLM, LlmConfig
from gpu_rag.engines.llm_files import model_folder
from gpu_rag.engines.llm_prompt import ChatTokenizer, EstimatedTokens, TokenCounter
from gpu_rag.engines.llm_scripted import smallest_answer
from gpu_rag.errors import MissingDependencyError

EXPECTED_SHARE = 0.25  # of its budget that a JSON answer takes; an assumption
_CHOICE_TOKENS = 2  # a label or a yes, and the token that ends it


class Sent(NamedTuple):
    """One request as it would be sent."""

    request: GenerationRequest
    prompt_tokens: int

    @property
    def row(self) -> str:
        """The row that it is asked for."""
        return self.request.id.partition(" ")[0]

    @property
    def text(self) -> str:
        """What the model reads."""
        return "\n".join(f"{message.role}\n{message.content}" for message in self.request.messages)

    @property
    def expected_output_tokens(self) -> int:
        """What the answer is taken to be long, in tokens."""
        budget = self.request.sampling.max_tokens
        if self.request.span is not None:
            return budget
        return min(budget, _CHOICE_TOKENS) if self.request.choices else round(budget * EXPECTED_SHARE)


class DryEngine(CompletionEngine):
    """A completion engine without a model."""

    def __init__(self, config: LlmConfig) -> None:
        """Open the tokenizer, if the config names one that is here; `counted_by` says which."""
        self.max_context_tokens = config.max_context_tokens
        self._counter, self.counted_by = _open_counter(config)
        self.sent: list[Sent] = []
        self.llm = TextGenerator(self)

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation."""
        return self._counter.count(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield a completion per request, and keep what was asked."""
        counts = self.count_tokens([request.messages for request in requests])
        for request, tokens in zip(requests, counts, strict=True):
            self.sent.append(Sent(request, tokens))
            yield Completion(request.id, smallest_answer(request), prompt_tokens=tokens)

    def take(self) -> list[Sent]:
        """Return what was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


def shared_tokens(sent: Sequence[Sent], earlier: Mapping[str, Sequence[str]]) -> int:
    """Return how many prompt tokens an engine with a prefix cache has seen before.

    A prompt shares its beginning with the one before it, and with those that earlier stages sent for its row. Tokens are taken
    to be as long in the shared part as elsewhere. A request for a span shares nothing: the engine has to compute it all.

    Args:
        sent: Of one stage, two or more; a single one shares nothing.
        earlier: Texts by row.
    """
    plain = [item for item in sent if item.request.span is None]
    shared = 0.0
    for place, item in enumerate(plain):
        neighbour = [plain[place - 1].text] if len(plain) > 1 else []  # of the first: the last
        lengths = [_common_length(item.text, other) for other in (*neighbour, *earlier.get(item.row, ()))]
        shared += item.prompt_tokens * max(lengths, default=0) / len(item.text)
    return round(shared)


def _common_length(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _open_counter(config: LlmConfig) -> tuple[TokenCounter, str]:
    """Return what counts tokens, and what it is called; nothing is fetched for it."""
    named = config.tokenizer or (config.model if config.engine in ("vllm", "ray-llm") else "")
    if named and (named == BUNDLED_LLM or Path(named).is_dir()):
        try:
            return ChatTokenizer(model_folder(named)), f"the tokenizer of {named}"
        except MissingDependencyError as error:
            return EstimatedTokens(), f"an upper estimate, one token per two characters ({error})"
    return EstimatedTokens(), "an upper estimate, one token per two characters (no tokenizer of the model is on this machine)"


__all__ = ["EXPECTED_SHARE", "DryEngine", "Sent", "shared_tokens"]
