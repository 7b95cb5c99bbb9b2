"""Stage 07 by a language model: can the question be answered, yes or no, and how likely is it after its best passage."""

from collections.abc import Sequence
from math import exp, log1p
from typing import NamedTuple

from pydantic import PositiveInt

from gpu_rag.engines.generation import Generation, GenerationRequest, PromptSpan, TextGenerator
from gpu_rag.errors import ConfigError
from gpu_rag.prompts import PromptName, render
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.ask import Asked, Row, failed, noted
from gpu_rag.query.prompted.evidence_prompt import EvidencePromptConfig, instruct, show_evidence
from gpu_rag.query.repository import Repository

LIKELIHOOD_VALUES = ("passage", "question")
_CHOICES = ("yes", "no")
_MAX_LOG_ODDS = 50.0  # an engine may report a probability of zero
_SURE = 2.0  # log-odds of a choice whose probabilities the engine does not tell


class SufficePromptConfig(EvidencePromptConfig):
    """How a language model is asked whether evidence suffices.

    Attributes:
        likelihood: Whether to score the question given its best passage too; services that only generate cannot.
        likelihood_prompt: Its prompt, which ends with the question.
    """

    prompt: PromptName = "suffice"
    output_tokens: PositiveInt = 8
    likelihood: bool = True
    likelihood_prompt: PromptName = "likelihood"


class Verdict(NamedTuple):
    """What a model says of a question's evidence.

    Attributes:
        log_odds: Of yes against no.
        features: `llm_yes`, log-probability of yes, and `question_likelihood`, log-likelihood of the question per token; each
            only where the engine can tell.
    """

    log_odds: float
    features: dict[str, float]


def ask_verdicts(questions: Sequence[Row], repository: Repository, llm: TextGenerator, config: SufficePromptConfig) -> Asked:
    """Return the verdict on each question, None where nothing is selected and nothing is asked.

    A likelihood that cannot be had (the passage is too long, the engine fails on it) is a feature that is missing, with a note.

    Args:
        questions: `question, demands, selection, annotations`.
        repository: Sentences and texts.
        llm: The model.
        config: Prompts and budgets.
    """
    open_ = [row for row, question in enumerate(questions) if question["selection"]]
    shown = dict(zip(open_, show_evidence([questions[row] for row in open_], repository, llm, config), strict=True))
    instruction = instruct(config.prompt)
    requests = []
    for row, part in shown.items():
        if not isinstance(part, Failed):
            prompt = part.asked(instruction)
            requests.append(llm.request(str(row), prompt, config.output_tokens, choices=_CHOICES))
            if config.likelihood:
                requests.append(_scored_question(row, questions[row], repository, llm, config.likelihood_prompt))
    answers = llm.generate(requests)
    asked = Asked([], [], [])
    for row in range(len(questions)):
        evidence, chosen, scored = shown.get(row), answers.get(str(row)), answers.get(_scored_id(row))
        asked.calls.append([generation for generation in (chosen, scored) if generation])
        asked.notes.append("")
        if evidence is None or isinstance(evidence, Failed):
            asked.values.append(evidence)
            continue
        assert chosen is not None
        missing = scored is not None and not scored.ok
        if not chosen.ok:
            asked.values.append(failed(chosen))
        elif scored is not None and scored.state == "pending":
            asked.values.append(failed(scored))
        else:
            asked.values.append(_verdict(chosen, scored))
            unscored = f"question not scored, {scored.state}: {scored.reason}" if missing and scored else ""
            asked.notes[-1] = noted(evidence.note, unscored)
    return asked


def _scored_id(row: int) -> str:
    return f"{row} likelihood"


def _scored_question(row: int, question: Row, repository: Repository, llm: TextGenerator, prompt: str) -> GenerationRequest:
    """Return the request that scores the question after the passage of the best annotation, else the first selected one."""
    best = max(question["annotations"], key=lambda annotation: annotation["score"], default=question["selection"][0])
    chunk = repository.chunk_index[best["chunk_id"]]
    title, text = repository.chunk_titles[chunk], repository.chunk_texts[chunk]
    asking = question["question"]
    messages = render(prompt, passage=f"{title}\n{text}" if title else text, question=asking)
    start = messages[-1].content.rfind(asking)
    if start < 0:
        raise ConfigError(f"prompt {prompt[:60]!r}: its last part must end with the question")
    span = PromptSpan(len(messages) - 1, start, start + len(asking))
    return llm.request(_scored_id(row), messages, 1, span=span)


def _verdict(chosen: Generation, scored: Generation | None) -> Verdict:
    features = {}
    logprobs = chosen.completion.choice_logprobs
    if all(choice in logprobs for choice in _CHOICES):
        yes, no = (max(logprobs[choice], -_MAX_LOG_ODDS) for choice in _CHOICES)
        log_odds = yes - no
        features["llm_yes"] = -log1p(exp(-log_odds))
    else:
        log_odds = _SURE if chosen.value == "yes" else -_SURE
    if scored is not None and scored.ok and scored.completion.span_logprob is not None and scored.completion.span_tokens:
        features["question_likelihood"] = scored.completion.span_logprob / scored.completion.span_tokens
    return Verdict(log_odds, features)
