"""Stage 06, govern: bind every unit to its evidence, decide on it, align the entities.

Input:  `schemas.CHUNKS`, `UNIT_MENTIONS`, `UNIT_RELATIONS`, and the vectors of names.
Output: `schemas.ENTITIES`, `DESCRIPTIONS`, `MENTIONS`, `RELATIONS`, `FACTS`, `GOVERNANCE`.
Device: CPU.
Source: Gamma of PAGE-RAG (papers/page-rag.txt).

Nothing is dropped: each unit keeps its row with decision and reasons, so that a system may use the raw graph or the governed
one, and the accept, review and reject tables are the rows of that decision (`governance.by_decision`). The rules, each in a
module of its own: evidence binding (`binding`), names (`name_rules`), schema and domain-range validation (`relation_rules`),
causal protection (`causal`), confidence routing (here), alignment (`alignment`), homonyms (`senses`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_rag import schemas
from gpu_rag.index import causal, relation_rules
from gpu_rag.index.alignment import AlignConfig, Documents, NameVectors, align, aligner
from gpu_rag.index.binding import NO_ENDS, PARAPHRASED, ChunkText, Ends, Span, bind_mention, bind_relation
from gpu_rag.index.coding import Ints, coded, codes_of, distinct_pairs
from gpu_rag.index.entities import CO_MENTIONED, Resolved, description_table, fact_ids, fact_table, flag_rows, resolve
from gpu_rag.index.governance import governance_table
from gpu_rag.index.name_rules import malformed
from gpu_rag.index.person_names import PersonNames
from gpu_rag.index.relation_rules import class_of
from gpu_rag.schemas import STRING, list_of
from gpu_rag.spans import normal_form
from gpu_rag.stage import Cardinality, Tables, TableStage

UNBOUND = "unbound"  # the chunk does not hold the unit's names
MOVED = "moved"  # they stand elsewhere than the extractor said
LOW_CONFIDENCE = "low_confidence"
UNSCORED = "unscored"  # the extractor gives no score, and the config does not accept it unseen
MALFORMED = "malformed_name"

Decision = Literal["accept", "review", "reject"]
_RANK: dict[str, int] = {"accept": 0, "review": 1, "reject": 2}
_BATCH_ROWS = 1 << 16
_REACH = 160  # characters after a mention


class GovernConfig(BaseModel):
    """Confidence routing, and alignment.

    Attributes:
        reject_below: A unit with a lower score is rejected.
        review_below: A unit with a lower score waits for review.
        default_class: Decision on units without a score, per extractor; accept where none is named.
        align: Which entities may become one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    reject_below: float = Field(default=0.2, ge=0, le=1)
    review_below: float = Field(default=0.5, ge=0, le=1)
    default_class: dict[str, Decision] = {}
    align: AlignConfig = AlignConfig()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.reject_below > self.review_below:
            raise ValueError(f"reject_below={self.reject_below} must not exceed review_below={self.review_below}")
        return self


class Ruled(NamedTuple):
    """Place and decision of units, in the order of their table; a start of -1 where there is no place."""

    starts: Ints
    ends: Ints
    decisions: list[str]
    reasons: list[tuple[str, ...]]

    @classmethod
    def accepted(cls, num_rows: int) -> "Ruled":
        """Return units without a place that nothing speaks against."""
        return cls(np.full(num_rows, -1), np.full(num_rows, -1), ["accept"] * num_rows, [()] * num_rows)

    def span(self, row: int) -> Span | None:
        """Return the place of a unit."""
        return (int(self.starts[row]), int(self.ends[row])) if self.starts[row] >= 0 else None

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns that mentions and relations share."""
        starts, ends = (pa.array(places, pa.int64(), mask=self.starts < 0) for places in (self.starts, self.ends))
        reasons = pa.array(self.reasons, list_of(STRING))
        return {"start": starts, "end": ends, "decision": pa.array(self.decisions, STRING), "reasons": reasons}


def govern(tables: Tables, *, config: GovernConfig) -> dict[str, pa.Table]:
    """Return entities, mentions and relations with spans and decisions, facts, and the counts before and after."""
    chunks, units, claims = tables["chunks"], tables["unit_mentions"], tables["unit_relations"]
    resolved = resolve(chunks, units, claims)
    texts = _Texts(chunks)
    types = resolved.entities.column("type").to_pylist()
    ruled = _rule_mentions(texts, units, resolved, types, config)
    mentions = _mention_table(units, resolved, ruled)
    claimed = _rule_relations(texts, units, claims, resolved, types, ruled, config)
    relations = _relation_table(claims, resolved, claimed)
    canonical = _aligned(tables, resolved, mentions, relations, texts, config.align)
    entity_ids = resolved.entities.column("entity_id")
    entities = resolved.entities.set_column(1, schemas.ENTITIES.schema.field(1), entity_ids.take(pa.array(canonical)))
    ends = (resolved.mentions, resolved.subjects, resolved.objects)
    return {
        "entities": schemas.check_table(entities, schemas.ENTITIES),
        "descriptions": description_table(units, resolved),
        "mentions": schemas.check_table(mentions, schemas.MENTIONS),
        "relations": schemas.check_table(relations, schemas.RELATIONS),
        "facts": fact_table(claims, resolved),
        "governance": governance_table(entities, mentions, relations, ends, canonical),
    }


class _Texts:
    """The chunks, read one after the other."""

    def __init__(self, chunks: pa.Table) -> None:
        self.ids = coded(chunks.column("chunk_id")).values
        chunks = chunks.sort_by("chunk_id")
        self._starts, self._titles, self._texts = (chunks.column(name).combine_chunks() for name in ("start", "title", "text"))
        self._at = -1
        self._chunk = ChunkText(0, "", "")

    def __getitem__(self, row: int) -> ChunkText:
        if row != self._at:
            self._at = row
            self._chunk = ChunkText(self._starts[row].as_py(), self._titles[row].as_py(), self._texts[row].as_py())
        return self._chunk

    def rows(self, units: pa.Table) -> Ints:
        """Return the chunk row of each unit."""
        return codes_of(units.column("chunk_id"), self.ids)


def _in_chunk_order(texts: _Texts, units: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield (row, chunk row, values of the named columns) chunk by chunk, so that a chunk's text is folded once."""
    chunk_of = texts.rows(units)
    order = np.argsort(chunk_of, kind="stable")
    selected = units.select(names)
    for begin in range(0, len(order), _BATCH_ROWS):
        rows = order[begin : begin + _BATCH_ROWS]
        batch = [column.to_pylist() for column in selected.take(pa.array(rows)).columns]
        yield from zip(rows.tolist(), chunk_of[rows].tolist(), map(list, zip(*batch, strict=True)), strict=True)


def _rule_mentions(texts: _Texts, units: pa.Table, resolved: Resolved, types: list[str | None], config: GovernConfig) -> Ruled:
    ruled = Ruled.accepted(units.num_rows)
    columns = ("name", "kind", "type", "extractor", "start", "end", "confidence")
    entity_of = resolved.mentions.tolist()
    for row, chunk, (name, kind, type_, extractor, start, end, confidence) in _in_chunk_order(texts, units, columns):
        given = None if start is None or end is None else (start, end)
        span = bind_mention(texts[chunk], name, kind, given)
        found: list[tuple[str, str]] = []
        if not relation_rules.known_kind(kind):
            found.append((relation_rules.SCHEMA, "reject"))
        if _malformed(name, kind, type_, types[entity_of[row]]):
            found.append((MALFORMED, "reject"))
        _route(ruled, row, found, given, span, extractor, confidence, config)
    return ruled


def _rule_relations(
    texts: _Texts, units: pa.Table, claims: pa.Table, resolved: Resolved, types: list[str | None], mentions: Ruled,
    config: GovernConfig,
) -> Ruled:  # fmt: skip
    ruled = Ruled.accepted(claims.num_rows)
    columns = ("subject", "predicate", "object", "type", "extractor", "start", "end", "confidence")
    ends = _ends(texts, units, mentions)
    kinds = resolved.entities.column("kind").to_pylist()
    classes = [class_of(kind, type_) for kind, type_ in zip(kinds, types, strict=True)]
    subjects, objects = resolved.subjects.tolist(), resolved.objects.tolist()
    causal_by: dict[tuple[str | None, str], bool] = {}
    for row, chunk, values in _in_chunk_order(texts, claims, columns):
        subject, predicate, object_, type_, extractor, start, end, confidence = values
        given = None if start is None or end is None else (start, end)
        span = bind_relation(texts[chunk], subject, object_, given, ends.get(chunk, NO_ENDS))
        found: list[tuple[str, str]] = []
        pair = (subjects[row], objects[row])
        if any(_malformed(name, kinds[e], None, types[e]) for name, e in zip((subject, object_), pair, strict=True)):
            found.append((MALFORMED, "reject"))
        if pair[0] == pair[1]:
            found.append((relation_rules.SELF_LOOP, "reject"))
        if predicate != CO_MENTIONED:
            decision = relation_rules.violations(type_, predicate, classes[pair[0]], classes[pair[1]])
            if decision:
                found.append((relation_rules.DOMAIN_RANGE, decision))
            key = (type_, predicate)
            if key not in causal_by:
                causal_by[key] = causal.is_causal(type_, predicate)
            if causal_by[key] and span is not None:
                span = _protected(texts[chunk], span, (subject, predicate, object_), type_, found)
        _route(ruled, row, found, given, span, extractor, confidence, config)
    return ruled


def _protected(
    chunk: ChunkText, span: Span, triple: tuple[str, str, str], type_: str | None, found: list[tuple[str, str]]
) -> Span:
    """Return the span of a causal relation, with its cue; add what speaks against it to `found`."""
    in_text = chunk.start <= span[0] and span[1] <= chunk.start + len(chunk.text)
    text, shift = (chunk.text, chunk.start) if in_text else (chunk.title, 0)
    finding = causal.check(text, (span[0] - shift, span[1] - shift), *triple, type_)
    if finding.reason:
        found.append((finding.reason, "review" if finding.reason in (causal.HEDGED, causal.FOREIGN) else "reject"))
        return span
    return finding.span[0] + shift, finding.span[1] + shift


def _malformed(name: str, kind: str, own_type: str | None, type_: str | None) -> bool:
    """Return whether a name can name nothing; what an event or a claim says may be a clause."""
    if kind in ("event", "claim"):
        return not any(c.isalnum() for c in name)
    return malformed(name, own_type if own_type in ("title", "date") else type_)


def _route(
    ruled: Ruled, row: int, found: list[tuple[str, str]], given: Span | None, span: Span | None, extractor: str,
    confidence: float | None, config: GovernConfig,
) -> None:  # fmt: skip
    """Write the place and the decision of a unit: the worst of what was found."""
    if span is None:
        found.append((UNBOUND, "reject"))
    elif given is not None and span != given:
        found.append((MOVED, "accept"))
    if confidence is None:
        if config.default_class.get(extractor, "accept") != "accept":
            found.append((UNSCORED, config.default_class[extractor]))
    elif confidence < config.review_below:
        found.append((LOW_CONFIDENCE, "reject" if confidence < config.reject_below else "review"))
    if span is not None:
        ruled.starts[row], ruled.ends[row] = span
    if found:
        ruled.decisions[row] = max((decision for _, decision in found), key=_RANK.__getitem__)
        ruled.reasons[row] = tuple(reason for reason, _ in found)


def _ends(texts: _Texts, units: pa.Table, mentions: Ruled) -> dict[int, Ends]:
    """Return by chunk what may stand for a name there: aliases given in it, and what it says in other words."""
    aliased = pc.greater(pc.fill_null(pc.list_value_length(units.column("aliases")), 0), 0)
    rows = flag_rows(pc.or_(aliased, pc.is_in(units.column("kind"), value_set=pa.array(PARAPHRASED))))
    chunk_of = texts.rows(units)
    aliases: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    paraphrases: dict[int, dict[str, Span]] = defaultdict(dict)
    chosen = units.select(["name", "kind", "aliases"]).take(pa.array(rows))
    for row, name, kind, given in zip(rows.tolist(), *(column.to_pylist() for column in chosen.columns), strict=True):
        chunk, span = int(chunk_of[row]), mentions.span(row)
        names = [name, *(given or ())]
        for one in names:
            aliases[chunk][normal_form(one)].update(names)
        if kind in PARAPHRASED and span is not None:
            form = normal_form(name)
            paraphrases[chunk][form] = min(span, paraphrases[chunk].get(form, span))
    return {
        chunk: Ends({form: frozenset(names) for form, names in aliases[chunk].items()}, paraphrases.get(chunk, {}))
        for chunk in sorted(aliases)
    }


def _mention_table(units: pa.Table, resolved: Resolved, ruled: Ruled) -> pa.Table:
    columns = {name: units.column(name) for name in ("mention_id", "chunk_id", "doc_id", "extractor")}
    entity_ids = resolved.entities.column("entity_id").take(pa.array(resolved.mentions))
    return _table({**columns, "entity_id": entity_ids, **ruled.columns()}, schemas.MENTIONS)


def _relation_table(claims: pa.Table, resolved: Resolved, ruled: Ruled) -> pa.Table:
    names = ("relation_id", "chunk_id", "doc_id", "extractor", "predicate", "type", "confidence")
    columns = {name: claims.column(name) for name in names}
    entity_ids = resolved.entities.column("entity_id")
    columns["fact_id"] = fact_ids(claims, resolved)
    columns["subject_id"] = entity_ids.take(pa.array(resolved.subjects))
    columns["object_id"] = entity_ids.take(pa.array(resolved.objects))
    return _table({**columns, **ruled.columns()}, schemas.RELATIONS)


def _table(columns: Mapping[str, Any], expected: schemas.TableSchema) -> pa.Table:
    return pa.table([columns[name] for name in expected.schema.names], schema=expected.schema)


def _aligned(
    tables: Tables, resolved: Resolved, mentions: pa.Table, relations: pa.Table, texts: _Texts, config: AlignConfig
) -> Ints:
    """Return the entity row that each entity is aligned with in the governed graph."""
    num_entities = resolved.entities.num_rows
    if not config.enabled or not num_entities:
        return np.arange(num_entities, dtype=np.int64)
    kept = [np.asarray(pc.not_equal(table.column("decision"), "reject"), bool) for table in (mentions, relations)]
    documents = coded(mentions.column("doc_id"), relations.column("doc_id"), relations.column("doc_id"))
    of_row = np.concatenate([resolved.mentions, resolved.subjects, resolved.objects])
    counted = np.concatenate([kept[0], kept[1], kept[1]])
    owners, docs, _ = distinct_pairs(of_row[counted], documents.codes[counted], len(documents.values))
    admitted = np.zeros(num_entities, bool)
    admitted[owners] = True
    judge = aligner(resolved.entities, admitted, Documents(owners, docs, num_entities), _causal_ends(relations, resolved))
    return align(
        judge,
        aliases=_given_aliases(tables["unit_mentions"], resolved, kept[0]),
        persons=PersonNames(_Surroundings(mentions, resolved.mentions, texts)),
        vectors=_name_vectors(tables, resolved.entities),
        config=config,
    )


def _causal_ends(relations: pa.Table, resolved: Resolved) -> frozenset[tuple[int, int]]:
    kinds = relations.select(["type", "predicate"]).group_by(["type", "predicate"]).aggregate([]).to_pylist()
    predicates = {(row["type"], row["predicate"]) for row in kinds if causal.is_causal(row["type"], row["predicate"])}
    if not predicates:
        return frozenset()
    columns = (relations.column("type").to_pylist(), relations.column("predicate").to_pylist())
    rows = [row for row, key in enumerate(zip(*columns, strict=True)) if key in predicates]
    pairs = zip(resolved.subjects[rows].tolist(), resolved.objects[rows].tolist(), strict=True)
    return frozenset((min(pair), max(pair)) for pair in pairs)


def _given_aliases(units: pa.Table, resolved: Resolved, kept: np.ndarray) -> list[tuple[int, list[int]]]:
    """Return each entity that an extractor gave aliases for, with the aliases that are names in its chunk's document too."""
    aliased = np.asarray(pc.greater(pc.fill_null(pc.list_value_length(units.column("aliases")), 0), 0), bool)
    rows = np.flatnonzero(aliased & kept) if len(kept) else np.empty(0, np.int64)
    forms = resolved.entities.column("normal_form").to_pylist()
    senses = resolved.entities.column("sense").to_pylist()
    rows_of_form = (
        {form: row for row, (form, sense) in enumerate(zip(forms, senses, strict=True)) if not sense} if len(rows) else {}
    )
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for row, given in zip(rows.tolist(), units.column("aliases").take(pa.array(rows)).to_pylist(), strict=True):
        for alias in given:
            other = rows_of_form.get(normal_form(alias))
            if other is not None:
                found[int(resolved.mentions[row])][other] = None
    return [(entity, sorted(found[entity])) for entity in sorted(found)]


class _Surroundings:
    """What follows the mentions of an entity in the text, read when asked."""

    def __init__(self, mentions: pa.Table, entity_of: Ints, texts: _Texts) -> None:
        self._mentions, self._texts, self._chunk_of = mentions, texts, texts.rows(mentions)
        self._order = np.argsort(entity_of, kind="stable")
        self._sorted = entity_of[self._order]
        self._known: dict[int, list[str]] = {}

    def __call__(self, entity: int) -> list[str]:
        if entity not in self._known:
            begin, end = np.searchsorted(self._sorted, [entity, entity + 1])
            rows = self._order[begin:end]
            self._known[entity] = sorted({text for row in rows.tolist() if (text := self._after(row)) is not None})
        return self._known[entity]

    def _after(self, row: int) -> str | None:
        end = self._mentions.column("end")[row].as_py()
        if end is None:
            return None
        chunk = self._texts[int(self._chunk_of[row])]
        place = end - chunk.start
        return chunk.text[place : place + _REACH].split("\n")[0] if 0 <= place <= len(chunk.text) else None


def _name_vectors(tables: Tables, entities: pa.Table) -> NameVectors:
    embeddings = tables["embeddings"].filter(pc.equal(tables["embeddings"].column("kind"), "entity"))
    at = pc.index_in(entities.column("entity_id"), value_set=embeddings.column("item_id").combine_chunks())
    vector_ids = embeddings.column("vector_id").take(at)
    rows = pc.index_in(vector_ids, value_set=tables["vectors"].column("vector_id").combine_chunks())
    return NameVectors(np.asarray(pc.fill_null(rows, -1).to_numpy(), np.int64), tables["vectors"].column("vector"))


def _narrow(tables: Tables) -> dict[str, pa.Table]:
    """Return the tables with the vectors of names alone: sentences have many times as many."""
    embeddings = tables["embeddings"].filter(pc.equal(tables["embeddings"].column("kind"), "entity"))
    wanted = embeddings.column("vector_id").combine_chunks()
    vectors = tables["vectors"].filter(pc.is_in(tables["vectors"].column("vector_id"), value_set=wanted))
    return {**tables, "embeddings": embeddings, "vectors": vectors}


STAGE = TableStage(
    number=6,
    name="govern",
    version=3,
    reads=("chunks", "unit_mentions", "unit_relations", "vectors", "embeddings"),
    writes=(
        schemas.ENTITIES,
        schemas.DESCRIPTIONS,
        schemas.MENTIONS,
        schemas.RELATIONS,
        schemas.FACTS,
        schemas.GOVERNANCE,
    ),
    cardinality=Cardinality.MANY_TO_MANY,
    run=govern,
    narrow=_narrow,
)
