"""Stage 06, govern: bind every unit to its evidence, decide on it, align its names.

Input:  `schemas.CHUNKS`, `schemas.UNIT_MENTIONS`, `schemas.UNIT_RELATIONS`.
Output: `schemas.ENTITIES`, `MENTIONS`, `RELATIONS`, `FACTS`, `GOVERNANCE`.
Device: CPU.
Source: Gamma of PAGE-RAG (papers/page-rag.txt).

Nothing is dropped: each unit keeps its row with decision and reasons, so that a system may use the raw graph or the
governed one. Binding: the extractor's span where it holds the unit's names; else the first place of a name, or the
smallest window of both names of a relation, within the chunk; a unit found nowhere is rejected as `unbound`. Names
align by normal form alone.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_rag import ids, schemas
from gpu_rag.index.entities import NormalForms, entity_table, fact_table
from gpu_rag.spans import find_span, fold, smallest_window
from gpu_rag.stage import Cardinality, Tables, TableStage

UNBOUND = "unbound"  # the chunk does not hold the unit's names
MOVED = "moved"  # they stand elsewhere than the extractor said
LOW_CONFIDENCE = "low_confidence"

Span = tuple[int, int]


class GovernConfig(BaseModel):
    """Confidence routing: below `reject_below` a unit is rejected, below `review_below` it waits for review.

    Units without a score are accepted: no extractor here is trusted less for giving none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    reject_below: float = Field(default=0.2, ge=0, le=1)
    review_below: float = Field(default=0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.reject_below > self.review_below:
            raise ValueError(f"reject_below={self.reject_below} must not exceed review_below={self.review_below}")
        return self


def govern(tables: Tables, *, config: GovernConfig) -> dict[str, pa.Table]:
    """Return entities, mentions and relations with spans and decisions, facts, and the counts before and after."""
    columns = ["chunk_id", "start", "title", "text"]
    chunks = {row["chunk_id"]: row for row in tables["chunks"].select(columns).to_pylist()}
    units, claims = tables["unit_mentions"], tables["unit_relations"]
    forms = NormalForms()
    mentions = [_mention(unit, chunks[unit["chunk_id"]], forms, config) for unit in _by_chunk(units)]
    relations = [_relation(unit, chunks[unit["chunk_id"]], forms, config) for unit in _by_chunk(claims)]
    entities = entity_table(units, claims)
    return {
        "entities": entities,
        "mentions": schemas.MENTIONS.from_rows(mentions),
        "relations": schemas.RELATIONS.from_rows(relations),
        "facts": fact_table(claims),
        "governance": _counts(entities.column("entity_id").to_pylist(), mentions, relations),
    }


def _by_chunk(units: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the units chunk by chunk, so that folding a chunk's text is done once for all of its units."""
    yield from units.sort_by("chunk_id").to_pylist()


def _mention(unit: dict[str, Any], chunk: dict[str, Any], forms: NormalForms, config: GovernConfig) -> dict[str, Any]:
    name = unit["name"]
    given = _given(unit)
    stands = given is not None and any(text == name or forms[text] == forms[name] for text in _slices(chunk, given) if text)
    span = given if stands else _shift(find_span(chunk["text"], name), chunk)
    return {
        "mention_id": unit["mention_id"],
        "entity_id": ids.entity_id(forms[name]),
        **_ruled(unit, given, span, config),
    }


def _relation(unit: dict[str, Any], chunk: dict[str, Any], forms: NormalForms, config: GovernConfig) -> dict[str, Any]:
    subject, predicate, object_ = unit["subject"], unit["predicate"], unit["object"]
    given = _given(unit)
    stands = given is not None and any(_holds(text, subject) and _holds(text, object_) for text in _slices(chunk, given))
    span = given if stands else _shift(smallest_window(chunk["text"], subject, object_), chunk)
    return {
        "relation_id": unit["relation_id"],
        "fact_id": ids.fact_id(forms[subject], forms[predicate], forms[object_]),
        "subject_id": ids.entity_id(forms[subject]),
        "object_id": ids.entity_id(forms[object_]),
        "predicate": predicate,
        "type": unit["type"],
        "confidence": unit["confidence"],
        **_ruled(unit, given, span, config),
    }


def _given(unit: dict[str, Any]) -> Span | None:
    return None if unit["start"] is None else (unit["start"], unit["end"])


def _slices(chunk: dict[str, Any], span: Span) -> Iterator[str]:
    """Yield what stands at a span of the source text: in the chunk, and in the title, which every chunk inherits."""
    start, end = span
    if chunk["start"] <= start <= end <= chunk["start"] + len(chunk["text"]):
        yield chunk["text"][start - chunk["start"] : end - chunk["start"]]
    if 0 <= start <= end <= len(chunk["title"]):
        yield chunk["title"][start:end]


def _holds(text: str, name: str) -> bool:
    return name in text or fold(name)[0].strip() in fold(text)[0]


def _shift(span: Span | None, chunk: dict[str, Any]) -> Span | None:
    return None if span is None else (span[0] + chunk["start"], span[1] + chunk["start"])


def _ruled(unit: dict[str, Any], given: Span | None, span: Span | None, config: GovernConfig) -> dict[str, Any]:
    """Return the columns that mentions and relations share: place, span, decision, reasons."""
    decision, reasons = "accept", []
    confidence = unit["confidence"]
    if confidence is not None and confidence < config.review_below:
        decision = "reject" if confidence < config.reject_below else "review"
        reasons.append(LOW_CONFIDENCE)
    if span is None:
        decision = "reject"
        reasons.append(UNBOUND)
    elif given is not None and span != given:
        reasons.append(MOVED)
    start, end = span or (None, None)
    place = {name: unit[name] for name in ("chunk_id", "doc_id", "extractor")}
    return {**place, "start": start, "end": end, "decision": decision, "reasons": reasons}


def _counts(entity_ids: list[str], mentions: list[dict[str, Any]], relations: list[dict[str, Any]]) -> pa.Table:
    """Return `schemas.GOVERNANCE`: what is in the raw graph (before) and in the governed graph (after).

    An entity is in the governed graph if a mention or relation of it is accepted, and isolated if no relation joins it
    to another. Units are counted per extractor and, below accept, per decision and reason.
    """
    rows: dict[str, list[int]] = {}
    accepted = [unit for unit in relations if unit["decision"] == "accept"]
    admitted = {unit["entity_id"] for unit in mentions if unit["decision"] == "accept"}
    admitted |= {unit[end] for unit in accepted for end in ("subject_id", "object_id")}
    rows["entities"] = [len(entity_ids), len(admitted)]
    rows["isolated_entities"] = [len(set(entity_ids) - _joined(relations)), len(admitted - _joined(accepted))]
    for kind, units in (("mentions", mentions), ("relations", relations)):
        admissible = [unit for unit in units if unit["decision"] == "accept"]
        rows[kind] = [len(units), len(admissible)]
        before, after = (Counter(unit["extractor"] for unit in counted) for counted in (units, admissible))
        for extractor in sorted(before):
            rows[f"{kind}.{extractor}"] = [before[extractor], after[extractor]]
        reasons = Counter(f"{kind}.{unit['decision']}.{reason}" for unit in units for reason in unit["reasons"])
        for measure in sorted(reasons):
            rows[measure] = [reasons[measure], reasons[measure] if ".accept." in measure else 0]
    return schemas.GOVERNANCE.build(
        {
            "measure": list(rows),
            "before": [before for before, _ in rows.values()],
            "after": [after for _, after in rows.values()],
        }
    )


def _joined(relations: list[dict[str, Any]]) -> set[str]:
    """Return the entities that some relation joins to another entity."""
    pairs = ((unit["subject_id"], unit["object_id"]) for unit in relations)
    return {entity for pair in pairs if pair[0] != pair[1] for entity in pair}


STAGE = TableStage(
    number=6,
    name="govern",
    version=2,
    reads=("chunks", "unit_mentions", "unit_relations"),
    writes=(schemas.ENTITIES, schemas.MENTIONS, schemas.RELATIONS, schemas.FACTS, schemas.GOVERNANCE),
    cardinality=Cardinality.MANY_TO_MANY,
    run=govern,
)
