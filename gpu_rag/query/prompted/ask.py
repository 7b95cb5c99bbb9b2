"""What the prompted stages share: settings, labels, prompts that fit, one call per stage, rows from generations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag.engines.generation import Generation, Message, TextGenerator
from gpu_rag.ids import canonical_json
from gpu_rag.prompts import PromptName, prompt_text
from gpu_rag.prompts.shapes import Schema
from gpu_rag.query.frame import Failed

Row = dict[str, Any]


class PromptConfig(BaseModel):
    """How one stage asks a language model.

    Attributes:
        prompt: A built-in prompt, or the path of a file of your own (see `gpu_rag.prompts`).
        output_tokens: Budget of one answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: PromptName
    output_tokens: PositiveInt


class Asked(NamedTuple):
    """What came of a stage's questions, row by row.

    Attributes:
        values: Of the stage's own kind; `Failed` where a row's generation is not ok.
        calls: The generations of each row, none where nothing was asked.
        notes: What was left out of a value.
    """

    values: list[Any]
    calls: list[list[Generation]]
    notes: list[str]


def failed(generation: Generation) -> Failed:
    """Return what a generation that is not ok makes of its row."""
    return Failed(generation.state, generation.reason)


def noted(*remarks: str) -> str:
    """Return remarks as one reason, the empty ones left out."""
    return "; ".join(remark for remark in remarks if remark)


def fit(
    llm: TextGenerator, num_rungs: Sequence[int], build: Callable[[int, int], Sequence[Message]], budget: int
) -> list[int | None]:
    """Return for each row its first rung whose prompt fits the budget, None where none does.

    Args:
        llm: Counts the tokens, those of all rows in one call a round.
        num_rungs: How many ways there are to write each row's prompt, each shorter than the one before.
        build: (row, rung) -> prompt.
        budget: Tokens.
    """
    low, high = [0] * len(num_rungs), list(num_rungs)
    probe = [0] * len(num_rungs)  # the longest first: nearly all rows fit at once
    open_ = [row for row, count in enumerate(num_rungs) if count]
    while open_:
        counts = llm.count_tokens([build(row, probe[row]) for row in open_])
        for row, tokens in zip(open_, counts, strict=True):
            if tokens <= budget:
                high[row] = probe[row]
            else:
                low[row] = probe[row] + 1
            probe[row] = (low[row] + high[row]) // 2
        open_ = [row for row in open_ if low[row] < high[row]]
    return [None if rung == count else rung for rung, count in zip(high, num_rungs, strict=True)]


def not_keyed(*prompts: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return a stage's `not_keyed`: all settings of a model that is not asked, else names of prompts, whose texts are keyed.

    Args:
        prompts: Fields of the stage's section `llm` that name prompts.
    """

    def excluded(config: Any) -> Mapping[str, Any]:
        return {"llm": set(prompts) if config.method == "llm" else True}

    return excluded


def keyed_texts(*schemas: Schema, **prompts: tuple[str, Sequence[str]]) -> dict[str, str]:
    """Return the texts that decide a stage's answers, by name.

    Args:
        schemas: Samples of the schemas its answers follow, whose bounds are those of all.
        prompts: Each one's name and the values that it may use.

    Raises:
        ConfigError: If a prompt asks for another value.
    """
    texts = {f"prompt {name}": prompt_text(prompt, values) for name, (prompt, values) in prompts.items()}
    return texts | {f"schema {number}": canonical_json(schema) for number, schema in enumerate(schemas)}
