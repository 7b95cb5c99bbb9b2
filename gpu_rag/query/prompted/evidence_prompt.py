"""The part that the prompts of ground, suffice and answer share, byte for byte, so that an engine computes it once.

It is the system message and, first in the user message, the selected passages with their labelled sentences, the question
and its demands; each stage's own instruction follows. Passages that do not fit are cut whole, from the end of the selection,
by a budget that is the same in all three stages: what the context leaves beside `reserve_tokens` for instruction and answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import PositiveInt, model_validator

from gpu_rag.engines.generation import Message, TextGenerator
from gpu_rag.errors import ConfigError
from gpu_rag.prompts import PromptName, render
from gpu_rag.query.evidence import sentence_rows
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.ask import PromptConfig, Row, fit
from gpu_rag.query.repository import Repository

EVIDENCE_VALUES = ("passages", "question", "demands")
_BETWEEN = "\n\n"


class EvidencePromptConfig(PromptConfig):
    """How a stage asks about the selected passages.

    The last two are to be the same in ground, suffice and answer: else their prompts do not share their beginning.

    Attributes:
        evidence: Prompt of the shared part.
        reserve_tokens: Of the context, kept for a stage's instruction and answer, chat template aside.
    """

    evidence: PromptName = "evidence"
    reserve_tokens: PositiveInt = 1280

    @model_validator(mode="after")
    def _answer_fits(self) -> Self:
        if self.output_tokens >= self.reserve_tokens:
            raise ValueError(f"output_tokens={self.output_tokens} must be below reserve_tokens={self.reserve_tokens}")
        return self


@dataclass(frozen=True, slots=True)
class Evidence:
    """What of a question's selection a model is shown.

    Attributes:
        messages: The shared part.
        chunk_ids: The passages behind P1, P2, ...
        sentences: Sentence rows behind S1, S2, ...
        note: What was cut.
    """

    messages: tuple[Message, ...]
    chunk_ids: list[str]
    sentences: list[int]
    note: str

    def asked(self, instruction: str) -> tuple[Message, ...]:
        """Return the whole prompt: the shared part, then a stage's instruction."""
        *before, user = self.messages
        return (*before, Message(user.role, user.content + _BETWEEN + instruction))


def instruct(prompt: str, **values: object) -> str:
    """Return a stage's instruction, which is a prompt of one user part.

    Raises:
        ConfigError: If the prompt has other parts.
    """
    messages = render(prompt, **values)
    if [message.role for message in messages] != ["user"]:
        raise ConfigError(f"prompt {prompt[:60]!r}: expected one user part, found {[message.role for message in messages]}")
    return messages[0].content


def show_evidence(
    questions: Sequence[Row], repository: Repository, llm: TextGenerator, config: EvidencePromptConfig
) -> list[Evidence | Failed]:
    """Return what is shown of each question's selection, which is not empty; a first passage that does not fit fails it.

    Raises:
        ConfigError: If the model's context has no room for passages at all.
    """
    selections = [[item["chunk_id"] for item in question["selection"]] for question in questions]

    def build(row: int, cut: int) -> tuple[Message, ...]:
        shown = selections[row][: len(selections[row]) - cut]
        return _shared_part(questions[row], shown, repository, config.evidence)

    budget = llm.prompt_budget(config.reserve_tokens)
    if budget <= 0:
        context = llm.engine.max_context_tokens
        raise ConfigError(f"a context of {context} tokens leaves no room for passages beside {config.reserve_tokens} reserved")
    cuts = fit(llm, [len(selection) for selection in selections], build, budget)
    evidence: list[Evidence | Failed] = []
    for row, cut in enumerate(cuts):
        if cut is None:
            evidence.append(Failed("too_long", f"the first selected passage does not fit {budget} prompt tokens"))
            continue
        chunk_ids = selections[row][: len(selections[row]) - cut]
        note = f"{cut} of {len(selections[row])} selected passages did not fit the prompt" if cut else ""
        evidence.append(Evidence(build(row, cut), chunk_ids, sentence_rows(repository, chunk_ids).tolist(), note))
    return evidence


def _shared_part(question: Row, chunk_ids: Sequence[str], repository: Repository, prompt: str) -> tuple[Message, ...]:
    """Return the messages of the shared part, the last one the user's."""
    passages: list[Row] = []
    number = 0
    for place, chunk_id in enumerate(chunk_ids, start=1):
        sentences = []
        for row in sentence_rows(repository, [chunk_id]):
            number += 1
            sentences.append({"label": f"S{number}", "text": repository.sentence_texts[row]})
        title = repository.chunk_titles[repository.chunk_index[chunk_id]]
        passages.append({"label": f"P{place}", "title": title, "sentences": sentences})
    demands = [_demand(number, demand) for number, demand in enumerate(question["demands"], start=1)]
    messages = render(prompt, passages=passages, question=question["question"], demands=demands)
    if messages[-1].role != "user":
        raise ConfigError(f"prompt {prompt[:60]!r}: its last part must be the user's")
    return messages


def _demand(number: int, demand: Row) -> Row:
    return {"label": f"D{number}"} | {name: demand[name] for name in ("description", "inputs", "outputs")}
