"""One question of the report, ready to print: asked, demanded, retrieved, selected, grounded, decided, answered.

Everything is plain text and numbers here; the template escapes it. Texts are cut, so that a page of 1,000 questions
stays small.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_rag.evaluation.passages import Passage, Span, highlight, shorten
from gpu_rag.evaluation.plots import meter

_CITATION_MARK = re.compile(r"\[(\d{1,3})\]")
_UNKNOWN_PASSAGE = "(passage not in this index)"


@dataclass(frozen=True)
class Limits:
    """How much of one question is printed.

    Attributes:
        passage_chars: Characters of a selected passage, around its spans.
        num_candidates: Candidates listed besides the selected ones.
        text_chars: Characters of a question, answer or explanation.
        quote_chars: Characters of a quote, name, description or title.
        num_items: Items of any other list.
    """

    passage_chars: int
    num_candidates: int
    text_chars: int = 1500
    quote_chars: int = 240
    num_items: int = 12


def question_view(
    row: Mapping[str, Any],
    *,
    gold: Mapping[str, Any],
    answer: Mapping[str, Any],
    ranking: Sequence[str],
    lineage: Mapping[str, Any] | None,
    chunks: Mapping[str, Passage],
    titles: Mapping[str, str],
    limits: Limits,
) -> dict[str, Any]:
    """Return what the template prints of one question.

    Args:
        row: Its row of `metrics.per_question`.
        gold: Its row of `schemas.QUESTIONS`.
        answer: Its row of `schemas.ANSWERS`.
        ranking: Its distinct document ids, best first.
        lineage: Its row of `schemas.LINEAGES`, None if there is none.
        chunks: Passages by chunk id.
        titles: Titles by document id.
        limits: How much is printed.
    """
    view: dict[str, Any] = {
        "row": row,
        "question": shorten(gold["question"], limits.text_chars),
        "answer": shorten(answer["answer"] or "", limits.text_chars),
        "reason": shorten(answer["reason"], limits.quote_chars),
        "explanation": _explanation(shorten(answer["explanation"] or "", limits.text_chars), len(answer["citations"])),
        "citations": [
            {
                "number": number,
                "title": shorten(titles.get(citation["doc_id"], ""), limits.quote_chars),
                "doc_id": citation["doc_id"],
                "start": citation["start"],
                "end": citation["end"],
                "quote": shorten(citation["quote"], limits.quote_chars),
            }
            for number, citation in enumerate(answer["citations"][: limits.num_items], start=1)
        ],
        "golds": [shorten(text, limits.quote_chars) for text in gold["answers"][: limits.num_items]],
        "more_golds": max(0, len(gold["answers"]) - limits.num_items),
        "supports": _supports(gold, ranking, lineage, titles, limits),
        "lineage": None,
    }
    if lineage is not None:
        view["lineage"] = _lineage(lineage, answer, set(gold["supporting_doc_ids"]), chunks, limits)
    return view


def _explanation(text: str, num_citations: int) -> list[dict[str, Any]]:
    """Return the text cut at its citation marks: pieces with `text`, and `number` where a mark names a citation."""
    pieces: list[dict[str, Any]] = []
    at = 0
    for match in _CITATION_MARK.finditer(text):
        number = int(match[1])
        if 1 <= number <= num_citations:
            pieces += [{"text": text[at : match.start()], "number": None}, {"text": match[0], "number": number}]
            at = match.end()
    pieces.append({"text": text[at:], "number": None})
    return [piece for piece in pieces if piece["text"]]


def _supports(
    gold: Mapping[str, Any],
    ranking: Sequence[str],
    lineage: Mapping[str, Any] | None,
    titles: Mapping[str, str],
    limits: Limits,
) -> list[dict[str, Any]]:
    ranks = {doc_id: rank for rank, doc_id in enumerate(ranking, start=1)}
    selected = {entry["doc_id"] for entry in lineage["selection"]} if lineage is not None else set()
    return [
        {
            "doc_id": doc_id,
            "title": shorten(titles.get(doc_id, ""), limits.quote_chars),
            "rank": ranks.get(doc_id),
            "selected": doc_id in selected,
        }
        for doc_id in list(dict.fromkeys(gold["supporting_doc_ids"]))[: limits.num_items]
    ]


def _lineage(
    lineage: Mapping[str, Any],
    answer: Mapping[str, Any],
    supports: set[str],
    chunks: Mapping[str, Passage],
    limits: Limits,
) -> dict[str, Any]:
    names = {demand["demand_id"]: f"D{number}" for number, demand in enumerate(lineage["demands"], start=1)}
    selection = {entry["chunk_id"]: entry for entry in lineage["selection"]}
    pool = {candidate["chunk_id"]: candidate for candidate in lineage["pool"]}
    selected = [
        _candidate(pool.get(chunk_id), entry, names, supports, chunks, limits)
        | {"segments": _passage_text(chunk_id, lineage, answer, names, chunks, limits)}
        for chunk_id, entry in selection.items()
    ]
    places = {candidate["chunk_id"]: place for place, candidate in enumerate(lineage["pool"], start=1)}
    others = [chunk_id for chunk_id in pool if chunk_id not in selection]
    return {
        "demands": [_demand(demand, names, lineage, answer, chunks, limits) for demand in lineage["demands"]],
        "selected": selected,
        "others": [
            _candidate(pool[chunk_id], None, names, supports, chunks, limits) | {"pool_rank": places[chunk_id]}
            for chunk_id in others[: limits.num_candidates]
        ],
        "more_others": max(0, len(others) - limits.num_candidates),
        "num_pool": len(pool),
        "sufficiency": _sufficiency(lineage["sufficiency"], names, limits),
    }


def _candidate(
    candidate: Mapping[str, Any] | None,
    entry: Mapping[str, Any] | None,
    names: Mapping[str, str],
    supports: set[str],
    chunks: Mapping[str, Passage],
    limits: Limits,
) -> dict[str, Any]:
    """Return one candidate with its provenance A_q: the demands whose lists held it, and at which rank."""
    known: Mapping[str, Any] = candidate or entry or {}
    passage = chunks.get(known["chunk_id"])
    events = candidate["events"] if candidate else []
    return {
        "doc_id": known["doc_id"],
        "title": shorten(passage.title, limits.quote_chars) if passage else _UNKNOWN_PASSAGE,
        "gold": known["doc_id"] in supports,
        "provenance": [
            {"demand": names.get(event["demand_id"], event["demand_id"]), "rank": event["rank"]}
            for event in events[: limits.num_items]
        ],
        "score": candidate["score"] if candidate else None,
        "pool_rank": entry["pool_rank"] if entry else None,
        "reason": entry["reason"] if entry else "",
    }


def _passage_text(
    chunk_id: str,
    lineage: Mapping[str, Any],
    answer: Mapping[str, Any],
    names: Mapping[str, str],
    chunks: Mapping[str, Passage],
    limits: Limits,
) -> list[Any]:
    passage = chunks.get(chunk_id)
    if passage is None:
        return []
    spans = [
        Span(
            w["start"] - passage.start,
            w["end"] - passage.start,
            f"evidence for {names.get(w['demand_id'], '?')}",
            False,
        )
        for w in lineage["annotations"]
        if w["chunk_id"] == chunk_id
    ]
    spans += [
        Span(citation["start"] - passage.start, citation["end"] - passage.start, f"citation [{number}]", True)
        for number, citation in enumerate(answer["citations"], start=1)
        if citation["doc_id"] == passage.doc_id
    ]
    heading = len(passage.title) + 1
    if passage.title and passage.text.startswith(f"{passage.title}\n") and all(span.start >= heading for span in spans):
        # The title stands above the text already.
        moved = [span._replace(start=span.start - heading, end=span.end - heading) for span in spans]
        return highlight(passage.text[heading:], moved, limits.passage_chars)
    return highlight(passage.text, spans, limits.passage_chars)


def _demand(
    demand: Mapping[str, Any],
    names: Mapping[str, str],
    lineage: Mapping[str, Any],
    answer: Mapping[str, Any],
    chunks: Mapping[str, Passage],
    limits: Limits,
) -> dict[str, Any]:
    annotations = [w for w in lineage["annotations"] if w["demand_id"] == demand["demand_id"]]
    query = demand["query"]
    return {
        "name": names[demand["demand_id"]],
        "description": shorten(demand["description"], limits.text_chars),
        "query": shorten(query, limits.quote_chars) if query != demand["description"] else "",
        "inputs": demand["inputs"][: limits.num_items],
        "outputs": demand["outputs"][: limits.num_items],
        "completed": bool(annotations),
        "open": demand["demand_id"] in answer["open_demands"],
        "annotations": [
            {
                "quote": shorten(w["quote"], limits.quote_chars),
                "type": w["type"],
                "title": shorten(_title(chunks, w) or w["doc_id"], limits.quote_chars),
                "consumes": _bindings(w["consumes"], limits),
                "produces": _bindings(w["produces"], limits),
                "score": w["score"],
            }
            for w in annotations[: limits.num_items]
        ],
        "more_annotations": max(0, len(annotations) - limits.num_items),
    }


def _title(chunks: Mapping[str, Passage], named: Mapping[str, Any]) -> str:
    passage = chunks.get(named["chunk_id"])
    return passage.title if passage else ""


def _bindings(bindings: Sequence[Mapping[str, str]], limits: Limits) -> list[str]:
    return [f"{b['variable']} = {shorten(b['value'], limits.quote_chars)}" for b in bindings[: limits.num_items]]


def _sufficiency(sufficiency: Mapping[str, Any] | None, names: Mapping[str, str], limits: Limits) -> dict[str, Any] | None:
    if sufficiency is None:
        return None
    return {
        **sufficiency,
        "reason": shorten(sufficiency["reason"], limits.quote_chars),
        "open_demands": [names.get(demand_id, demand_id) for demand_id in sufficiency["open_demands"]],
        "features": sufficiency["features"][: 2 * limits.num_items],
        "meter": meter(sufficiency["score"], sufficiency["threshold"]),
    }
