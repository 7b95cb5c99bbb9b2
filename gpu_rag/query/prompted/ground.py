"""Stage 06 by a language model: which sentences, or which quotes, of the selected passages state each demand's fact.

Source: LineageRAG, "Source grounding" (eq. 8). A span is the source's own slice by construction: the sentence behind a label,
or the place where a quote was found.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import PositiveInt

from gpu_rag.engines.generation import TextGenerator
from gpu_rag.prompts import PromptName
from gpu_rag.prompts.shapes import LONG_TEXT, SHORT_TEXT, Schema, closed, label_of, label_position, labels
from gpu_rag.query.evidence import retrieved_by
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.ask import Asked, Row, failed, noted
from gpu_rag.query.prompted.evidence_prompt import Evidence, EvidencePromptConfig, instruct, show_evidence
from gpu_rag.query.repository import Repository
from gpu_rag.spans import find_span

GROUND_VALUES = ("spans", "max_spans", "demands")
Spans = Literal["sentences", "quotes"]


class GroundPromptConfig(EvidencePromptConfig):
    """How a language model is asked for spans.

    Attributes:
        spans: `sentences`: labels of sentences, so that every span is verbatim; `quotes`: free quotes, looked for in their
            passage, and left out where they do not stand there.
    """

    prompt: PromptName = "ground"
    output_tokens: PositiveInt = 768
    spans: Spans = "sentences"


def ground_schema(spans: Spans, num_demands: int, num_passages: int, num_sentences: int, max_spans: int) -> Schema:
    """Return the schema of the answer: for each demand the list of its spans, empty where it stays open."""
    if spans == "quotes":
        span = closed(passage=label_of("P", num_passages), quote=LONG_TEXT, value=SHORT_TEXT)
    else:
        span = closed(sentence=label_of("S", num_sentences), value=SHORT_TEXT)
    of_demand = {"type": "array", "items": span, "maxItems": max_spans}
    return closed(**dict.fromkeys(labels("D", num_demands), of_demand))


def ask_spans(
    questions: Sequence[Row], repository: Repository, llm: TextGenerator, config: GroundPromptConfig, max_spans: int
) -> Asked:
    """Return the proposed annotations of each question; without a selection or a demand nothing is asked.

    Args:
        questions: `question, demands, pool, selection`.
        repository: Sentences and texts.
        llm: The model.
        config: Prompt and budgets.
        max_spans: Annotations that a demand may have.
    """
    open_ = [row for row, question in enumerate(questions) if question["selection"] and question["demands"]]
    shown = dict(zip(open_, show_evidence([questions[row] for row in open_], repository, llm, config), strict=True))
    requests = []
    for row, part in shown.items():
        if isinstance(part, Evidence) and part.sentences:
            sizes = len(questions[row]["demands"]), len(part.chunk_ids), len(part.sentences)
            schema = ground_schema(config.spans, *sizes, max_spans)
            prompt = part.asked(_instruction(questions[row], part, config, max_spans))
            requests.append(llm.request(str(row), prompt, config.output_tokens, schema=schema))
    answers = llm.generate(requests)
    asked = Asked([], [], [])
    for row, question in enumerate(questions):
        evidence, generation = shown.get(row), answers.get(str(row))
        asked.calls.append([generation] if generation else [])
        asked.notes.append("")
        if isinstance(evidence, Failed):
            asked.values.append(evidence)
        elif evidence is None or generation is None:
            asked.values.append([])
        elif not generation.ok:
            asked.values.append(failed(generation))
        else:
            annotations, left_out = _annotations(question, evidence, generation.value, repository, config.spans)
            asked.values.append(annotations)
            asked.notes[-1] = noted(evidence.note, generation.reason, left_out)
    return asked


def _instruction(question: Row, evidence: Evidence, config: GroundPromptConfig, max_spans: int) -> str:
    demands = []
    for label, demand in zip(labels("D", len(question["demands"])), question["demands"], strict=True):
        own = retrieved_by(demand["demand_id"], question["pool"])
        passages = [f"P{number}" for number, chunk_id in enumerate(evidence.chunk_ids, start=1) if chunk_id in own]
        of_demand = {name: demand[name] for name in ("description", "inputs", "outputs")}
        demands.append({"label": label, "passages": passages} | of_demand)
    return instruct(config.prompt, spans=config.spans, max_spans=max_spans, demands=demands)


def _annotations(
    question: Row, evidence: Evidence, answer: dict[str, list[Row]], repository: Repository, spans: Spans
) -> tuple[list[Row], str]:
    """Return the annotations in the order of the answer, and what was left out.

    The n-th annotation of a demand has score 1/n. A value is produced only where it stands in the passage or its title. A
    demand consumes the first value that each demand it builds on produced, so that both ends of a lineage agree.
    """
    annotations: list[Row] = []
    known: dict[str, str] = {}
    lost = unstated = 0
    for label, demand in zip(labels("D", len(question["demands"])), question["demands"], strict=True):
        consumes = [{"variable": name, "value": known[name]} for name in demand["inputs"] if name in known]
        own: dict[tuple[str, int, int], Row] = {}
        for item in answer[label]:
            span = _span(item, evidence, repository, spans)
            if span is None:
                lost += 1
                continue
            value = item["value"].strip()
            stated = bool(value) and _stands_in(value, span["chunk_id"], repository)
            unstated += bool(value) and not stated
            produces = [{"variable": name, "value": value} for name in demand["outputs"]] if stated else []
            own.setdefault(
                (span["chunk_id"], span["start"], span["end"]),
                span
                | {"demand_id": demand["demand_id"], "type": "supports", "consumes": consumes, "produces": produces}
                | {"score": 1.0 / (len(own) + 1)},
            )
        for binding in (binding for annotation in own.values() for binding in annotation["produces"]):
            known.setdefault(binding["variable"], binding["value"])
        annotations += own.values()
    counted = {"quotes that do not stand in their passage": lost, "values that do not stand in their passage": unstated}
    return annotations, noted(*(f"left out {count} {what}" for what, count in counted.items() if count))


def _span(item: Row, evidence: Evidence, repository: Repository, spans: Spans) -> dict[str, Any] | None:
    """Return passage, place and quote of a proposed span, None if its quote does not stand in its passage."""
    if spans == "quotes":
        chunk = repository.chunk_index[evidence.chunk_ids[label_position(item["passage"])]]
        text = repository.chunk_texts[chunk]
        found = find_span(text, item["quote"])
        if found is None:
            return None
        start, end = (int(repository.chunk_starts[chunk]) + offset for offset in found)
        quote = text[slice(*found)]
    else:
        row = evidence.sentences[label_position(item["sentence"])]
        chunk, quote = int(repository.sentence_chunks[row]), repository.sentence_texts[row]
        start, end = int(repository.sentence_starts[row]), int(repository.sentence_ends[row])
    ids = {"chunk_id": repository.chunk_ids[chunk], "doc_id": repository.chunk_doc_ids[chunk]}
    return ids | {"start": start, "end": end, "quote": quote}


def _stands_in(value: str, chunk_id: str, repository: Repository) -> bool:
    chunk = repository.chunk_index[chunk_id]
    return any(find_span(text, value) for text in (repository.chunk_texts[chunk], repository.chunk_titles[chunk]))
