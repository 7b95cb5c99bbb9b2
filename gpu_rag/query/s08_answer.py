"""Query stage 08, answer: a short answer with an explanation made of cited sentences, or a refusal with its reason.

Input:  `question`, `demands`, `selection`, `annotations` and `sufficiency`.
Output: `schemas.REPLIES`, 1:1. A failure is a row's state, never a refusal.
Device: the encoder's; the language model's with `llm`.
Source: PAGE-RAG, answer or refuse; LineageRAG, the reader's view of grounded spans.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.engines.generation import Generation, TextGenerator
from gpu_rag.query.answer_spans import rank_spans
from gpu_rag.query.choices import choose, options, yes_or_no
from gpu_rag.query.evidence import TokenBank, most_similar, sentence_at, sentence_rows, titled
from gpu_rag.query.expectation import expectation
from gpu_rag.query.frame import Failed, query_stage, result_table
from gpu_rag.query.prompted.answer import ANSWER_VALUES, AnswerPromptConfig, Draft, answer_schema, ask_answers
from gpu_rag.query.prompted.ask import keyed_texts, not_keyed
from gpu_rag.query.prompted.evidence_prompt import EVIDENCE_VALUES
from gpu_rag.query.repository import Repository
from gpu_rag.query.s06_ground import substituted

Row = dict[str, Any]
_REASON = re.compile(r"\b(?:because|due to|in order to|so that|so as to|owing to|as a result of)\b", re.IGNORECASE)
_QUESTIONS_AT_ONCE = 64  # bounds the memory of token vectors


class AnswerConfig(BaseModel):
    """How answers are made and when they are withheld.

    Attributes:
        method: `extractive` (no LLM). `llm`: a language model's answer (`prompted.answer`).
        policy: `bounded` refuses where the evidence does not suffice; `always` only where no passage was selected. A model's
            blank answer is a refusal under both. An answer that cites nothing is one under `bounded`; under `always` it rests
            on the best annotation of each demand.
        llm: How the language model is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["extractive", "llm"] = "extractive"
    policy: Literal["bounded", "always"] = "bounded"
    llm: AnswerPromptConfig = AnswerPromptConfig()


class Reply(NamedTuple):
    """A short answer, and the sentence rows that it rests on, in the order of the explanation."""

    answer: str
    sentences: list[int]


def answer(
    work: pa.Table,
    *,
    config: AnswerConfig,
    repository: Repository,
    encoder: Encoder | None = None,
    llm: TextGenerator | None = None,
) -> pa.Table:
    """Return an answer or a refusal for each question."""
    payload = schemas.REPLIES.schema.field("reply")
    questions = work.select(["question", "demands", "selection", "annotations", "sufficiency"]).to_pylist()
    refusals = [_refusal(question, config.policy) for question in questions]
    answered = [question for question, reason in zip(questions, refusals, strict=True) if not reason]
    if config.method == "llm":
        assert llm is not None
        return result_table(work, payload, *_by_llm(questions, refusals, config, repository, llm))
    assert encoder is not None
    replies = iter(_extractive(answered, repository, encoder))
    values = [
        _refused(question, reason) if reason else _answered(question, next(replies), repository)
        for question, reason in zip(questions, refusals, strict=True)
    ]
    return result_table(work, payload, values)


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


def _answered(question: Row, reply: Reply, repository: Repository) -> Row:
    """Return the reply's row; the explanation's sentence n is followed by [n] and is the quote of citation n."""
    quotes = [repository.sentence_texts[row] for row in reply.sentences]
    return {
        "answer": reply.answer,
        "explanation": " ".join(f"{quote} [{number}]" for number, quote in enumerate(quotes, start=1)),
        "outcome": "answered",
        "refusal_reason": "",
        "citations": [
            {
                "doc_id": repository.chunk_doc_ids[repository.sentence_chunks[row]],
                "start": int(repository.sentence_starts[row]),
                "end": int(repository.sentence_ends[row]),
                "quote": quote,
            }
            for row, quote in zip(reply.sentences, quotes, strict=True)
        ],
        "open_demands": question["sufficiency"]["open_demands"],
    }


def _by_llm(
    questions: list[Row], refusals: list[str], config: AnswerConfig, repository: Repository, llm: TextGenerator
) -> tuple[list[Row | Failed], list[list[Generation]], list[str]]:
    """Return value, calls and note of each question; those refused already are not asked."""
    asked = ask_answers([q for q, reason in zip(questions, refusals, strict=True) if not reason], repository, llm, config.llm)
    drafts = iter(zip(*asked, strict=True))
    values: list[Row | Failed] = []
    calls: list[list[Generation]] = []
    notes: list[str] = []
    for question, reason in zip(questions, refusals, strict=True):
        draft, called, note = (None, [], "") if reason else next(drafts)
        if draft is None:
            values.append(_refused(question, reason))
        elif isinstance(draft, Failed):
            values.append(draft)
        else:
            values.append(_concluded(question, draft, config.policy, repository))
        calls.append(called)
        notes.append(note)
    return values, calls, notes


def _concluded(question: Row, draft: Draft, policy: str, repository: Repository) -> Row:
    """Return the answer that a draft gives, or a refusal where it has no answer or nothing to rest on."""
    if not draft.answer or (not draft.sentences and policy == "bounded"):
        return _refused(question, "open_demand" if question["sufficiency"]["open_demands"] else "no_evidence")
    return _answered(question, Reply(draft.answer, draft.sentences or _explained(question, [], repository)), repository)


class _Evidence(NamedTuple):
    """The sentences that may hold a question's short answer, the best first, and the value that they were found to state."""

    asking: str
    rows: list[int]
    scores: list[float]
    value: str
    stated_in: int


def _extractive(questions: list[Row], repository: Repository, encoder: Encoder) -> list[Reply]:
    """Return for each question what its last demand produced, or where that is not its answer, its own best span."""
    evidence = [_evidence(question, repository) for question in questions]
    bare = [row for row, found in enumerate(evidence) if not found.rows]
    vectors = encoder.encode([evidence[row].asking for row in bare], kind="query").vectors
    for row, vector in zip(bare, vectors, strict=True):
        rows = sentence_rows(repository, [item["chunk_id"] for item in questions[row]["selection"]])
        evidence[row] = evidence[row]._replace(rows=most_similar(vector, rows, 1, repository).tolist(), scores=[0.0])
    replies = [_by_rule(*asked, repository) for asked in zip(questions, evidence, strict=True)]
    rest = [row for row, reply in enumerate(replies) if reply is None]
    for first in range(0, len(rest), _QUESTIONS_AT_ONCE):
        part = rest[first : first + _QUESTIONS_AT_ONCE]
        spans = _best_spans([evidence[row] for row in part], repository, encoder)
        for row, (short, source) in zip(part, spans, strict=True):
            replies[row] = Reply(short, _explained(questions[row], [source], repository))
    return [reply for reply in replies if reply is not None]


def _evidence(question: Row, repository: Repository) -> _Evidence:
    annotations = _best_first(question)
    demands = question["demands"]
    rows = [_row(annotation, repository) for annotation in annotations]
    value, stated_in = "", -1
    if len(demands) == 1 or demands[-1]["inputs"]:  # else the question joins its demands, and no demand asks for its answer
        for annotation, row in zip(annotations, rows, strict=True):
            if annotation["demand_id"] == demands[-1]["demand_id"] and annotation["produces"]:
                value, stated_in = annotation["produces"][0]["value"], row
    return _Evidence(_asking_text(question), rows, [annotation["score"] for annotation in annotations], value, stated_in)


def _by_rule(question: Row, evidence: _Evidence, repository: Repository) -> Reply | None:
    """Return the reply that needs no further ranking of spans, None if there is none."""
    text, rows = question["question"], evidence.rows
    best = repository.sentence_texts[rows[0]]
    offered = options(text)
    wanted = expectation(evidence.asking).kind
    behind = rows[:1]
    if offered:
        short, places = choose(text, offered, titled(repository, rows), evidence.scores)
        behind = [rows[place] for place in places]
    elif wanted == "yes_no":
        short = yes_or_no(text, best)
    elif wanted == "reason":
        cue = _REASON.search(best)
        short = best[cue.start() :] if cue else best
    elif evidence.value:
        short, behind = evidence.value, [evidence.stated_in]
    else:
        return None
    return Reply(short, _explained(question, behind, repository))


def _best_spans(evidence: list[_Evidence], repository: Repository, encoder: Encoder) -> list[tuple[str, int]]:
    """Return for each question its best span and the row of the sentence that holds it, the whole best sentence without."""
    texts = [text for found in evidence for text in (found.asking, *titled(repository, found.rows))]
    bank = TokenBank(encoder, texts)
    best = []
    for found in evidence:
        spans = rank_spans(found.asking, found.rows, found.scores, bank, repository)
        source = found.rows[spans[0].sentence] if spans else found.rows[0]
        quote = repository.sentence_texts[source]
        best.append((quote[spans[0].start : spans[0].end] if spans else quote, source))
    return best


def _asking_text(question: Row) -> str:
    """Return what the short answer must fit: the last demand where it builds on earlier ones, else the question."""
    last = question["demands"][-1] if question["demands"] else None
    if last is None or not last["inputs"]:
        return str(question["question"])
    known = {binding["variable"]: binding["value"] for a in question["annotations"] for binding in a["produces"]}
    return substituted(last["description"], known)


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


def _explained(question: Row, behind: list[int], repository: Repository) -> list[int]:
    """Return the explanation's sentences: the best of each demand in demand order, then those behind the answer."""
    best: dict[str, Row] = {}
    for annotation in question["annotations"]:
        known = best.get(annotation["demand_id"])
        if known is None or annotation["score"] > known["score"]:
            best[annotation["demand_id"]] = annotation
    order = [best[demand["demand_id"]] for demand in question["demands"] if demand["demand_id"] in best]
    return list(dict.fromkeys([*(_row(annotation, repository) for annotation in order), *behind]))


def _row(annotation: Row, repository: Repository) -> int:
    return sentence_at(annotation["chunk_id"], annotation["start"], repository)


def _engines(config: AnswerConfig) -> tuple[str, ...]:
    return ("llm" if config.method == "llm" else "encoder", "repository")


def _texts(config: AnswerConfig) -> Mapping[str, str]:
    if config.method != "llm":
        return {}
    prompts = {"prompt": (config.llm.prompt, ANSWER_VALUES), "evidence": (config.llm.evidence, EVIDENCE_VALUES)}
    return keyed_texts(answer_schema(2), **prompts)


STAGE = query_stage(
    number=8,
    name="answer",
    version=2,
    reads=("question", "demands", "selection", "annotations", "sufficiency"),
    after=schemas.SUFFICIENCIES,
    writes=schemas.REPLIES,
    run=answer,
    engines=_engines,
    texts=_texts,
    not_keyed=not_keyed("prompt", "evidence"),
    uses_llm=True,
)
