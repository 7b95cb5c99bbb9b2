"""Stage 05 by a language model: k passages of the pool chosen as a set, each shown with who retrieved it.

Source: LineageRAG, "Set-wise selection" (eq. 7).
"""

import re
from collections.abc import Sequence
from typing import Self

from pydantic import PositiveInt, model_validator

from gpu_rag.engines.generation import Message, TextGenerator
from gpu_rag.prompts import PromptName, render
from gpu_rag.prompts.shapes import Schema, closed, label_of, label_position, labels
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.ask import Asked, PromptConfig, Row, failed, fit, noted
from gpu_rag.query.repository import Repository

SELECT_VALUES = ("question", "demands", "passages", "k")
_WORD = re.compile(r"\S+")
_DIGIT = re.compile(r"\d")
_CHARS_PER_WORD = 8  # bounds an excerpt in a script without spaces between words


class SelectPromptConfig(PromptConfig):
    """How a language model is asked for a selection.

    Where a pool does not fit the prompt, excerpts are halved down to `min_excerpt_words`, then whole passages are left out
    from the pool's end.

    Attributes:
        excerpt_words: First words of each passage that are shown.
        min_excerpt_words: What excerpts are at least shortened to before a passage is left out.
    """

    prompt: PromptName = "select"
    output_tokens: PositiveInt = 128
    excerpt_words: PositiveInt = 80
    min_excerpt_words: PositiveInt = 20

    @model_validator(mode="after")
    def _can_be_shortened(self) -> Self:
        if self.min_excerpt_words > self.excerpt_words:
            raise ValueError(f"min_excerpt_words={self.min_excerpt_words} is above excerpt_words={self.excerpt_words}")
        return self


def select_schema(num_passages: int, k: int) -> Schema:
    """Return the schema of the answer: at most k of the passages' labels."""
    return closed(passages={"type": "array", "items": label_of("P", num_passages), "minItems": 1, "maxItems": k})


def ask_selections(
    questions: Sequence[Row],
    provenance: Sequence[Sequence[str]],
    repository: Repository,
    llm: TextGenerator,
    config: SelectPromptConfig,
    k: int,
) -> Asked:
    """Return what the model chose of each pool, (chunk id, reason) in its order; a pool of k or less is not asked about.

    Args:
        questions: `question, demands, pool`.
        provenance: What is shown of each candidate's provenance.
        repository: Titles and texts.
        llm: The model.
        config: Prompt and budgets.
        k: Passages wanted.
    """
    open_ = [row for row, question in enumerate(questions) if len(question["pool"]) > k]
    ladders = [_ladder(len(questions[row]["pool"]), config) for row in open_]

    def build(number: int, rung: int) -> tuple[Message, ...]:
        row = open_[number]
        return _prompt(questions[row], provenance[row], *ladders[number][rung], repository, config, k)

    rungs = fit(llm, [len(ladder) for ladder in ladders], build, llm.prompt_budget(config.output_tokens))
    shown = {
        row: ladders[number][rung] for number, (row, rung) in enumerate(zip(open_, rungs, strict=True)) if rung is not None
    }
    requests = []
    for row, (words, count) in shown.items():
        prompt = _prompt(questions[row], provenance[row], words, count, repository, config, k)
        schema = select_schema(count, min(k, count))
        requests.append(llm.request(str(row), prompt, config.output_tokens, schema=schema))
    answers = llm.generate(requests)
    asked = Asked([], [], [])
    for row, question in enumerate(questions):
        pool = question["pool"]
        generation = answers.get(str(row))
        asked.calls.append([generation] if generation else [])
        asked.notes.append("")
        if len(pool) <= k:
            asked.values.append([])
        elif generation is None:
            asked.values.append(Failed("too_long", "not even one candidate fits the prompt"))
        elif not generation.ok:
            asked.values.append(failed(generation))
        else:
            asked.values.append([(pool[label_position(label)]["chunk_id"], "llm") for label in generation.value["passages"]])
            asked.notes[-1] = noted(generation.reason, _cut_note(*shown[row], len(pool), config))
    return asked


def describe_provenance(events: Sequence[Row], same_title: int, *, masked: bool = False) -> str:
    """Return who retrieved a candidate, in words, "" if no one is known to have.

    Args:
        events: The demands and ranks that are shown for it.
        same_title: Candidates of its title in the pool.
        masked: Every digit replaced, so that as many characters say nothing.
    """
    if not events:
        return ""
    found = ", ".join(f"{event['demand_id']} rank {event['rank']}" for event in events)
    best = min(event["rank"] for event in events)
    text = f"found by {found}; {len(events)} in all, best rank {best}; candidates of this title: {same_title}"
    return _DIGIT.sub("-", text) if masked else text


def excerpt(text: str, num_words: int) -> str:
    """Return the first words of a text, as they stand there."""
    end = 0
    for count, word in enumerate(_WORD.finditer(text), start=1):
        end = word.end()
        if count == num_words:
            break
    return text[: min(end, num_words * _CHARS_PER_WORD)]


def _ladder(num_candidates: int, config: SelectPromptConfig) -> list[tuple[int, int]]:
    """Return (excerpt words, candidates shown), from everything to one candidate's shortest excerpt."""
    words = [config.excerpt_words]
    while words[-1] > config.min_excerpt_words:
        words.append(max(words[-1] // 2, config.min_excerpt_words))
    return [(length, num_candidates) for length in words] + [(words[-1], n) for n in range(num_candidates - 1, 0, -1)]


def _prompt(
    question: Row,
    provenance: Sequence[str],
    words: int,
    count: int,
    repository: Repository,
    config: SelectPromptConfig,
    k: int,
) -> tuple[Message, ...]:
    passages = []
    for label, candidate, retrieved in zip(labels("P", count), question["pool"], provenance, strict=False):
        chunk = repository.chunk_index[candidate["chunk_id"]]
        text = excerpt(repository.chunk_texts[chunk], words)
        passages.append({"label": label, "title": repository.chunk_titles[chunk], "excerpt": text, "provenance": retrieved})
    demands = [
        {"label": label, "description": demand["description"]}
        for label, demand in zip(labels("D", len(question["demands"])), question["demands"], strict=True)
    ]
    return render(config.prompt, question=question["question"], demands=demands, passages=passages, k=min(k, count))


def _cut_note(words: int, count: int, num_candidates: int, config: SelectPromptConfig) -> str:
    shortened = f"excerpts cut to {words} words" if words < config.excerpt_words else ""
    left_out = (
        f"{num_candidates - count} of {num_candidates} candidates did not fit the prompt" if count < num_candidates else ""
    )
    return noted(shortened, left_out)
