"""What the language model is asked for, by the discourse mode of a chunk: one schema each, and how its answers become units.

Narrative: characters, places, events, causal and temporal relations. Conceptual: concepts, definitions, attributes, theoretical
relations. Argumentative: claims, premises, evidence, conclusions, and what supports or attacks what.

All three have the same shape: entities, statements (events, definitions or claims), relations. A relation names entities, or
events and claims by the label of their place in the answer (E1, C2), which is replaced by their text here.

Source: PAGE-RAG, "Projection-Aware Hybrid Repository Construction" (papers/page-rag.txt).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_rag.index.extractors import Chunk, Extraction, Mention, Relation
from gpu_rag.prompts.shapes import LONG_TEXT, NAME, Schema, closed, label_of, label_position, one_of
from gpu_rag.spans import find_span, is_blank

CONFIDENCES = {"high": 0.9, "medium": 0.6, "low": 0.3}  # words, since no grammar bounds a number well
MAX_ALIASES = 5
_KINDS = {"concept": "concept", "event": "event"}  # of an entity, by its type; others are entities
_Span = tuple[int, int]


@dataclass(frozen=True)
class Discourse:
    """What is asked for in one mode.

    Attributes:
        entity_types: Closed list, likewise `relation_types`.
        statements: The answer's key for its statements: events, definitions or claims.
        kind: Kind of their mentions.
        details: Further keys of a statement.
        label: Letter by which relations name a statement; "" where it has a name of its own.
    """

    entity_types: tuple[str, ...]
    relation_types: tuple[str, ...]
    statements: str
    kind: str
    details: Mapping[str, Schema]
    label: str


_NAMED_TYPES = ("person", "organization", "place", "work", "event", "date")
DISCOURSES: Mapping[str, Discourse] = {
    "narrative": Discourse(
        entity_types=(*_NAMED_TYPES, "object", "other"),
        relation_types=(
            "causal", "temporal", "located_in", "born_in", "part_of", "member_of", "family", "created", "took_part_in", "is_a",
            "attribute", "other",
        ),
        statements="events",
        kind="event",
        details={},
        label="E",
    ),
    "conceptual": Discourse(
        entity_types=("concept", "method", "substance", *_NAMED_TYPES, "other"),
        relation_types=(
            "is_a", "part_of", "attribute", "definition", "causal", "depends_on", "used_for", "contrasts_with", "located_in",
            "created", "temporal", "other",
        ),
        statements="definitions",
        kind="concept",
        details={"definition": LONG_TEXT},
        label="",
    ),
    "argumentative": Discourse(
        entity_types=(*_NAMED_TYPES, "concept", "other"),
        relation_types=("supports", "attacks", "stated_by", "causal", "is_a", "part_of", "attribute", "located_in", "other"),
        statements="claims",
        kind="claim",
        details={"role": one_of("claim", "premise", "evidence", "conclusion")},
        label="C",
    ),
}  # fmt: skip


def answer_schema(
    discourse: Discourse, num_sentences: int, *, max_entities: int, max_statements: int, max_relations: int
) -> Schema:
    """Return the JSON schema of an answer; of one mode, the labels of the sentences are its only variable part."""
    place = {"sentence": label_of("S", num_sentences), "confidence": one_of(*CONFIDENCES)}
    entity = closed(
        name=NAME,
        type=one_of(*discourse.entity_types),
        description=LONG_TEXT,
        aliases={"type": "array", "items": NAME, "maxItems": MAX_ALIASES},
        **place,
    )
    statement = closed(name=NAME, **discourse.details, **place)
    relation = closed(subject=NAME, type=one_of(*discourse.relation_types), predicate=NAME, object=NAME, **place)
    arrays = {"entities": (entity, max_entities), discourse.statements: (statement, max_statements)}
    arrays["relations"] = (relation, max_relations)
    return closed(**{name: {"type": "array", "items": item, "maxItems": most} for name, (item, most) in arrays.items()})


def units(chunk: Chunk, answer: Mapping[str, Any], discourse: Discourse) -> Extraction:
    """Return the units of an answer that fits the schema of its mode; the note counts what names a statement not given."""
    entities, aliases = [], []
    for entity in answer["entities"]:
        others = [alias for alias in entity["aliases"] if not is_blank(alias) and alias != entity["name"]]
        kind, confidence = _KINDS.get(entity["type"], "entity"), CONFIDENCES[entity["confidence"]]
        start, end = _place(chunk, entity["name"], _sentence(chunk, entity)) or (None, None)
        description = entity["description"]
        entities.append(Mention(entity["name"], entity["type"], start, end, confidence, description, others, kind))
        for alias in others:
            stands = find_span(chunk.text, alias)
            if stands is not None:
                aliases.append(Mention(alias, entity["type"], *stands, confidence, kind=kind))
    statements = [_statement(statement, _sentence(chunk, statement), discourse) for statement in answer[discourse.statements]]
    relations = []
    num_dangling = 0
    names = {entity.name for entity in entities}
    for relation in answer["relations"]:
        ends = [_end(relation[key], discourse, names, statements) for key in ("subject", "object")]
        if ends[0] is None or ends[1] is None:
            num_dangling += 1
            continue
        span, confidence = _sentence(chunk, relation), CONFIDENCES[relation["confidence"]]
        relations.append(Relation(ends[0], relation["predicate"], ends[1], *span, confidence, relation["type"]))
    note = f"left out {num_dangling} relations of {discourse.statements} that it did not give" if num_dangling else ""
    # Entities first: where one entity's alias is another's name, the unit with the description is kept.
    return Extraction(entities + aliases + statements, relations, note)


def _sentence(chunk: Chunk, unit: Mapping[str, Any]) -> _Span:
    return chunk.sentences[label_position(unit["sentence"])]


def _place(chunk: Chunk, name: str, sentence: _Span) -> _Span | None:
    """Return where the name stands in its sentence; the sentence, if only elsewhere in the chunk; None if nowhere."""
    start, end = sentence
    found = find_span(chunk.text[start:end], name)
    if found is not None:
        return start + found[0], start + found[1]
    return sentence if find_span(chunk.text, name) is not None else None


def _statement(statement: Mapping[str, Any], sentence: _Span, discourse: Discourse) -> Mention:
    """Return a statement as a mention of its whole sentence: its name is a paraphrase, or stands for what is said of it."""
    type_ = statement.get("role", "definition" if "definition" in statement else discourse.kind)
    confidence = CONFIDENCES[statement["confidence"]]
    return Mention(statement["name"], type_, *sentence, confidence, statement.get("definition"), kind=discourse.kind)


def _end(text: str, discourse: Discourse, names: set[str], statements: list[Mention]) -> str | None:
    """Return the name that the end of a relation stands for, None for the label of a statement that was not given."""
    label = re.fullmatch(rf"{discourse.label}(\d{{1,4}})", text.strip()) if discourse.label else None
    if label is None or text in names:
        return text
    position = int(label[1]) - 1
    return statements[position].name if 0 <= position < len(statements) else None


__all__ = ["CONFIDENCES", "DISCOURSES", "Discourse", "answer_schema", "units"]
