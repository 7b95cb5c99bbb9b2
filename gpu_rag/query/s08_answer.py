"""Query stage 08, answer: a short answer with an explanation made of cited sentences, or a refusal with its reason.

Input:  `question`, `demands`, `selection`, `annotations` and `sufficiency`.
Output: `schemas.REPLIES`, 1:1. A failure is a row's state, never a refusal.
Device: the encoder's.
Source: PAGE-RAG, answer or refuse; LineageRAG, the reader's view of grounded spans.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.query.answer_spans import rank_spans
from gpu_rag.query.choices import choose, options, yes_or_no
from gpu_rag.query.evidence import TokenBank, sentence_rows
from gpu_rag.query.expectation import expectation
from gpu_rag.query.frame import query_stage, result_table
from gpu_rag.query.repository import Repository

Row = dict[str, Any]
_REASON = re.compile(r"\b(?:because|due to|in order to|so that|so as to|owing to|as a result of)\b", re.IGNORECASE)


class AnswerConfig(BaseModel):
    """How answers are made and when they are withheld.

    Attributes:
        method: `extractive` (no LLM).
        policy: `bounded` refuses where the evidence does not suffice; `always` only where no passage was selected.
        max_sentences: Cited sentences that the short answer is looked for in, the best matches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["extractive"] = "extractive"
    policy: Literal["bounded", "always"] = "bounded"
    max_sentences: PositiveInt = 4


class Cited(NamedTuple):
    """A sentence of a selected passage: `source[start:end] == quote`."""

    doc_id: str
    start: int
    end: int
    quote: str
    title: str
    score: float

    @property
    def titled(self) -> str:
        """The sentence after its title, as it is encoded."""
        return f"{self.title}: {self.quote}" if self.title else self.quote


class Reply(NamedTuple):
    """A short answer, and the sentences that it rests on, in the order of the explanation."""

    answer: str
    sentences: list[Cited]


def answer(work: pa.Table, *, config: AnswerConfig, repository: Repository, encoder: Encoder) -> pa.Table:
    """Return an answer or a refusal for each question."""
    questions = work.select(["question", "demands", "selection", "annotations", "sufficiency"]).to_pylist()
    refusals = [_refusal(question, config.policy) for question in questions]
    answered = [question for question, reason in zip(questions, refusals, strict=True) if not reason]
    replies = iter(_METHODS[config.method](answered, config, repository, encoder))
    values = [
        _refused(question, reason) if reason else _answered(question, next(replies))
        for question, reason in zip(questions, refusals, strict=True)
    ]
    return result_table(work, schemas.REPLIES.schema.field("reply"), values)


def _refusal(question: Row, policy: str) -> str:
    """Return why the question is refused, "" if it is answered."""
    if not question["selection"]:
        return "no_evidence"
    return "" if policy == "always" else str(question["sufficiency"]["reason"])


def _refused(question: Row, reason: str) -> Row:
    return {
        "answer": "",
        "explanation": "",
        "outcome": "refused",
        "refusal_reason": reason,
        "citations": [],
        "open_demands": question["sufficiency"]["open_demands"],
    }


def _answered(question: Row, reply: Reply) -> Row:
    """Return the reply's row; the explanation's sentence n is followed by [n] and is the quote of citation n."""
    return {
        "answer": reply.answer,
        "explanation": " ".join(f"{cited.quote} [{number}]" for number, cited in enumerate(reply.sentences, start=1)),
        "outcome": "answered",
        "refusal_reason": "",
        "citations": [
            {"doc_id": cited.doc_id, "start": cited.start, "end": cited.end, "quote": cited.quote} for cited in reply.sentences
        ],
        "open_demands": question["sufficiency"]["open_demands"],
    }


def _extractive(questions: list[Row], config: AnswerConfig, repository: Repository, encoder: Encoder) -> list[Reply]:
    """Return for each question the best span of its best cited sentences."""
    evidence = [[_cited(annotation, repository) for annotation in _best_first(question)] for question in questions]
    bare = [row for row, sentences in enumerate(evidence) if not sentences]
    for row, cited in zip(bare, _most_similar([questions[row] for row in bare], repository, encoder), strict=True):
        evidence[row] = [cited]
    asking = [_asking_text(question) for question in questions]
    evidence = [sentences[: config.max_sentences] for sentences in evidence]
    bank = TokenBank(
        encoder,
        [text for asked, group in zip(asking, evidence, strict=True) for text in (asked, *(cited.titled for cited in group))],
    )
    return [
        _reply(question, asked, sentences, bank, repository)
        for question, asked, sentences in zip(questions, asking, evidence, strict=True)
    ]


def _reply(question: Row, asking: str, sentences: list[Cited], bank: TokenBank, repository: Repository) -> Reply:
    wanted = expectation(asking).kind
    scores = [cited.score for cited in sentences]
    offered = options(question["question"])
    if offered:
        chosen, behind = choose(question["question"], offered, [cited.titled for cited in sentences], scores)
        return Reply(chosen, _explained(question, [sentences[row] for row in behind], repository))
    best = sentences[0]
    if wanted == "yes_no":
        return Reply(yes_or_no(question["question"], best.quote), _explained(question, [best], repository))
    if wanted == "reason":
        cue = _REASON.search(best.quote)
        return Reply(best.quote[cue.start() :] if cue else best.quote, _explained(question, [best], repository))
    quotes, titles = [cited.quote for cited in sentences], [cited.title for cited in sentences]
    spans = rank_spans(asking, quotes, titles, scores, bank, repository)
    if not spans:
        return Reply(best.quote, _explained(question, [best], repository))
    source = sentences[spans[0].sentence]
    return Reply(source.quote[spans[0].start : spans[0].end], _explained(question, [source], repository))


def _asking_text(question: Row) -> str:
    """Return what the short answer must fit: the last demand where it builds on earlier ones, else the question."""
    last = question["demands"][-1] if question["demands"] else None
    return str(last["description"]) if last and last["inputs"] else str(question["question"])


def _best_first(question: Row) -> list[Row]:
    """Return the annotations that may hold the short answer, the best first, each passage span once.

    Those of the last demand alone where it builds on earlier ones and is not open.
    """
    annotations = question["annotations"]
    last = question["demands"][-1] if question["demands"] else None
    if last and last["inputs"]:
        annotations = [a for a in annotations if a["demand_id"] == last["demand_id"]] or annotations
    ranked = sorted(annotations, key=lambda a: (-a["score"], a["doc_id"], a["start"]))
    return list({(a["doc_id"], a["start"], a["end"]): a for a in reversed(ranked)}.values())[::-1]


def _explained(question: Row, behind: list[Cited], repository: Repository) -> list[Cited]:
    """Return the explanation's sentences: the best of each demand in demand order, then those behind the answer."""
    best: dict[str, Row] = {}
    for annotation in question["annotations"]:
        known = best.get(annotation["demand_id"])
        if known is None or annotation["score"] > known["score"]:
            best[annotation["demand_id"]] = annotation
    order = [best[demand["demand_id"]] for demand in question["demands"] if demand["demand_id"] in best]
    sentences = [_cited(annotation, repository) for annotation in order] + behind
    return list({(cited.doc_id, cited.start, cited.end): cited for cited in reversed(sentences)}.values())[::-1]


def _cited(annotation: Row, repository: Repository) -> Cited:
    title = repository.chunk_titles[repository.chunk_index[annotation["chunk_id"]]]
    place = (annotation["doc_id"], annotation["start"], annotation["end"], annotation["quote"])
    return Cited(*place, title, annotation["score"])


def _most_similar(questions: list[Row], repository: Repository, encoder: Encoder) -> list[Cited]:
    """Return for each question, none of which has an annotation, the most similar sentence of its passages."""
    vectors = encoder.encode([question["question"] for question in questions], kind="query").vectors
    found = []
    for question, vector in zip(questions, vectors, strict=True):
        rows = sentence_rows(repository, [item["chunk_id"] for item in question["selection"]])
        similarity = repository.sentence_vectors[rows] @ vector
        row = int(rows[np.argmax(similarity)])
        chunk = repository.sentence_chunks[row]
        start, end = int(repository.sentence_starts[row]), int(repository.sentence_ends[row])
        place = (repository.chunk_doc_ids[chunk], start, end, repository.sentence_texts[row])
        found.append(Cited(*place, repository.chunk_titles[chunk], float(similarity.max())))
    return found


_METHODS: dict[str, Callable[[list[Row], AnswerConfig, Repository, Encoder], list[Reply]]] = {"extractive": _extractive}

STAGE = query_stage(
    number=8,
    name="answer",
    version=1,
    reads=("question", "demands", "selection", "annotations", "sufficiency"),
    after=schemas.SUFFICIENCIES,
    writes=schemas.REPLIES,
    run=answer,
    engines=("encoder", "repository"),
)
