"""Every table that crosses a stage edge: typed, versioned, checked.

A table's key gives its row order and its unique id. Columns named in `computed` hold floats that depend on the last bits of
a product; they stay out of content hashes, which see what they were computed from instead.
"""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import InputError

STRING = pa.string()
TEXT = pa.large_string()  # 64-bit offsets: a corpus can exceed 2 GiB in one column
OFFSET = pa.int64()  # code points in a document's source text

STATES = ("ok", "empty", "skipped", "truncated", "invalid", "declined", "too_long", "error")
FINAL_STATES = ("ok", "empty", "skipped")


@dataclass(frozen=True)
class TableSchema:
    """Name, version, columns and key of one table.

    Attributes:
        name: File stem and the name in error messages.
        version: Raised when a column is added, removed or changes its meaning; older versions are refused by name.
        schema: Columns, non-nullable unless said otherwise.
        key: Columns that give the row order; together they are unique.
        computed: Columns left out of content hashes.
        is_input: Kept with a generation for the next update, as what was read beside the corpus; no part of its content.
    """

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...]
    computed: tuple[str, ...] = field(default=())
    is_input: bool = False

    def empty(self) -> pa.Table:
        """Return a table of this schema without rows."""
        return self.schema.empty_table()

    def build(self, columns: dict[str, list[object] | pa.Array | pa.ChunkedArray]) -> pa.Table:
        """Return a checked table, sorted by key, from one list or array per column.

        Raises:
            InputError: On a missing or extra column, a wrong type, a null in a non-nullable column, or a key that repeats.
        """
        missing = [name for name in self.schema.names if name not in columns]
        extra = [name for name in columns if name not in self.schema.names]
        if missing or extra:
            raise InputError(f"table {self.name}: missing columns {missing}, unexpected columns {extra}")
        arrays = []
        for column in self.schema:
            values = columns[column.name]
            try:
                if isinstance(values, pa.Array | pa.ChunkedArray):
                    arrays.append(values if values.type == column.type else values.cast(column.type))
                else:
                    arrays.append(pa.array(values, type=column.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                raise InputError(f"table {self.name}, column {column.name}: {error}") from error
        return check_table(self.sort(pa.Table.from_arrays(arrays, schema=self.schema)), self)

    def from_rows(self, rows: list[dict[str, object]]) -> pa.Table:
        """Return a checked table, sorted by key, from one dict per row."""
        return self.build({name: [row[name] for row in rows] for name in self.schema.names})

    def sort(self, table: pa.Table) -> pa.Table:
        """Return the table's rows in key order (byte order of UTF-8)."""
        return table.sort_by([(name, "ascending") for name in self.key]) if table.num_rows > 1 else table


def check_table(table: pa.Table, expected: TableSchema) -> pa.Table:
    """Return the table if it fits its schema.

    Raises:
        InputError: Naming table, column and first bad row. Nulls are counted here because `Table.validate(full=True)`
            accepts them in a non-nullable field.
    """
    if table.schema.names != expected.schema.names:
        raise InputError(f"table {expected.name}: columns {table.schema.names}, expected {expected.schema.names}")
    for column in expected.schema:
        values = table.column(column.name)
        if values.type != column.type:
            raise InputError(f"table {expected.name}, column {column.name}: type {values.type}, expected {column.type}")
        if not column.nullable and values.null_count:
            row = pc.index(pc.is_null(values), True).as_py()
            raise InputError(f"table {expected.name}, column {column.name}: null in row {row}")
    if expected.key and table.num_rows > 1:
        keys = table.select(expected.key)
        distinct = keys.group_by(list(expected.key)).aggregate([]).num_rows
        if distinct != table.num_rows:
            counted = keys.group_by(list(expected.key)).aggregate([([], "count_all")])
            twice = counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()[0]
            raise InputError(f"table {expected.name}: key repeats, first {twice}")
    return table


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the schema's columns, in its order and with its field flags.

    Only columns of another type are cast: Arrow refuses to cast a null struct whose fields are non-nullable, even to its own
    type.
    """
    columns = [table.column(field.name) for field in schema]
    arrays = [c if c.type == field.type else c.cast(field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def column(name: str, type_: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """Return a field, non-nullable by default."""
    return pa.field(name, type_, nullable=nullable)


def list_of(type_: pa.DataType) -> pa.ListType:
    """Return a list type whose items are not null."""
    return pa.list_(pa.field("item", type_, nullable=False))


def struct_of(**fields: pa.DataType) -> pa.StructType:
    """Return a struct type whose fields are not null."""
    return pa.struct([pa.field(name, type_, nullable=False) for name, type_ in fields.items()])


_STATE = [column("state", STRING), column("reason", STRING)]

CALL = pa.struct([
    column("request", STRING),  # key of the request as it was sent: hash of messages, sampling, schema
    column("text", TEXT),  # raw output; for a pending one, its line of the batch file
    column("finish_reason", STRING),
    column("reason", STRING),
    column("prompt_tokens", pa.int32()),
    column("completion_tokens", pa.int32()),
    column("cached_tokens", pa.int32()),  # of the prompt, not computed again
    column("choice_logprobs", list_of(struct_of(choice=STRING, logprob=pa.float64()))),
    column("span_logprob", pa.float64(), nullable=True),
    column("span_tokens", pa.int32()),
])  # fmt: skip
# What a row cost, in the work cache alone: never in a table that readers open, since it differs between runs.
USAGE_COLUMNS = (
    column("llm_calls", pa.int32()),
    column("llm_invalid", pa.int32()),  # of these, cut, or not what was asked for
    column("tokens_in", pa.int64()),
    column("tokens_out", pa.int64()),
    column("tokens_cached", pa.int64()),
    column("tokens_retried", pa.int64()),  # of tries before the last, in and out; also in the sums before
    column("llm_seconds", pa.float64()),  # until the row's last answer; rows of a batch overlap
    column("calls", list_of(CALL)),
)
USAGE_METRICS = ("llm_calls", "llm_invalid", "tokens_in", "tokens_out", "tokens_cached", "tokens_retried")

# --- index: what the corpus says -------------------------------------------------------------------------------------

SECTION = struct_of(title=TEXT, level=pa.int32(), start=OFFSET, end=OFFSET)  # level 1: the outermost

DOCUMENTS = TableSchema(
    "documents", 1,
    pa.schema([
        column("doc_id", STRING),
        column("title", TEXT),
        column("text", TEXT),
        column("access", list_of(STRING)),
        column("duplicate_of", STRING, nullable=True),  # the smallest doc id with the same title and text, if another
        *_STATE,  # ok, or skipped with reason "empty"
    ]),
    key=("doc_id",),
)  # fmt: skip

PROFILES = TableSchema(
    "profiles", 1,
    pa.schema([
        column("doc_id", STRING),
        column("form", STRING),  # tau: fiction | paper | report | article | dialogue | mixed
        column("topics", list_of(STRING)),  # delta: topical distribution, the strongest first
        column("discourse", STRING),  # mu: narrative | conceptual | argumentative
        column("sections", list_of(SECTION)),  # sigma: chapters and sections, in order
        column("boundary", STRING),  # kappa: what a visible scope counts: chapter | section | none
        column("method", STRING),  # rules | llm | none: not profiled yet
    ]),
    key=("doc_id",),
)  # fmt: skip

CHUNKS = TableSchema(
    "chunks", 2,
    pa.schema([
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("order", pa.int32()),  # 0, 1, ... within the document
        column("start", OFFSET),
        column("end", OFFSET),
        column("title", TEXT),
        column("text", TEXT),  # source_text[start:end]
        column("section", TEXT),  # headings that it stands under, outermost first, joined by " > "; "" if none
        column("scope", pa.int32()),  # how many units of the profile's boundary begin at or before its end; 0 if none
        column("discourse", STRING),  # of its document's profile
        column("topics", list_of(STRING)),
    ]),
    key=("chunk_id",),
)  # fmt: skip

SENTENCES = TableSchema(
    "sentences", 1,
    pa.schema([
        column("sentence_id", STRING),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("order", pa.int32()),  # 0, 1, ... within the chunk
        column("start", OFFSET),
        column("end", OFFSET),
        column("text", TEXT),
    ]),
    key=("sentence_id",),
)  # fmt: skip

# --- index: what was extracted ---------------------------------------------------------------------------------------

RECORDED_CHUNKS = TableSchema(
    "recorded_chunks", 1,
    pa.schema([
        column("doc_id", STRING),  # the parent
        column("chunk_id", STRING),  # the user's own
        column("order", pa.int32()),  # 0, 1, ... within the parent, by chunk id with its numbers read as numbers
        column("text", TEXT),
    ]),
    key=("doc_id", "order"),
    is_input=True,
)  # fmt: skip

RECORDED_EXTRACTION = TableSchema(
    "recorded_extraction", 1,
    pa.schema([
        column("item_id", STRING),  # a chunk id (recorded chunks), or a doc id (the document's single chunk)
        column("entities", list_of(TEXT)),
        column("triples", list_of(list_of(TEXT))),  # as recorded: one that is malformed has not three parts
    ]),
    key=("item_id",),
    is_input=True,
)  # fmt: skip

UNIT_MENTIONS = TableSchema(
    "unit_mentions", 3,
    pa.schema([
        column("mention_id", STRING),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("extractor", STRING),  # mentions | recorded | llm | import path
        column("name", TEXT),  # of an event, definition or claim: what it says, in short
        column("kind", STRING),  # entity | concept | event | claim
        column("type", STRING, nullable=True),  # name | date | title | the extractor's own
        column("start", OFFSET, nullable=True),  # None: the extractor gave no span
        column("end", OFFSET, nullable=True),
        column("confidence", pa.float32(), nullable=True),
        column("description", TEXT, nullable=True),  # what the chunk says of it, in the extractor's words
        column("aliases", list_of(TEXT), nullable=True),  # other names of it, as the extractor gave them
    ]),
    key=("mention_id",),
)  # fmt: skip

UNIT_RELATIONS = TableSchema(
    "unit_relations", 2,
    pa.schema([
        column("relation_id", STRING),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("extractor", STRING),
        column("subject", TEXT),
        column("predicate", TEXT),
        column("object", TEXT),
        column("type", STRING, nullable=True),  # of the extractor's schema, such as causal; None: it has no types
        column("start", OFFSET, nullable=True),
        column("end", OFFSET, nullable=True),
        column("confidence", pa.float32(), nullable=True),
    ]),
    key=("relation_id",),
)  # fmt: skip

VECTORS = TableSchema(
    "vectors", 1,
    pa.schema([
        column("vector_id", STRING),
        column("vector", list_of(pa.float32())),  # L2-normalised, all of one dimension
        column("num_tokens", pa.int32()),
        column("cut_tokens", pa.int32()),  # tokens beyond the encoder's limit, not seen by it
    ]),
    key=("vector_id",),
    computed=("vector",),
)  # fmt: skip

EMBEDDINGS = TableSchema(
    "embeddings", 1,
    pa.schema([
        column("kind", STRING),  # chunk | sentence | entity | description | fact
        column("item_id", STRING),
        column("vector_id", STRING),
    ]),
    key=("kind", "item_id"),
)  # fmt: skip

# --- index: the governed graph ---------------------------------------------------------------------------------------

ENTITIES = TableSchema(
    "entities", 2,
    pa.schema([
        column("entity_id", STRING),  # of the normal form, and of the sense where homonyms stay apart
        column("canonical_id", STRING),  # the entity that it is aligned with in the governed graph; its own if none
        column("kind", STRING),  # entity | concept | event | claim
        column("type", STRING, nullable=True),  # the type that most of its mentions have, if any has one
        column("sense", STRING),  # what tells it from its homonyms; "" if nothing does
        column("name", TEXT),  # the most frequent surface form, the smallest of equals
        column("normal_form", TEXT),
        column("names", list_of(TEXT)),  # all surface forms, sorted
        column("aliases", list_of(TEXT)),  # other names that extractors gave for it, sorted
        column("extractors", list_of(STRING)),
        column("num_chunks", pa.int32()),  # chunks with an extracted mention or relation of it
    ]),
    key=("entity_id",),
)  # fmt: skip

DESCRIPTIONS = TableSchema(
    "descriptions", 1,
    pa.schema([
        column("description_id", STRING),
        column("entity_id", STRING),
        column("mention_id", STRING),  # the mention that it came with: chunk and span stand there
        column("text", TEXT),
    ]),
    key=("description_id",),
)  # fmt: skip

MENTIONS = TableSchema(
    "mentions", 1,
    pa.schema([
        column("mention_id", STRING),
        column("entity_id", STRING),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("extractor", STRING),
        column("start", OFFSET, nullable=True),  # None only where the decision is reject
        column("end", OFFSET, nullable=True),
        column("decision", STRING),  # accept | review | reject
        column("reasons", list_of(STRING)),
    ]),
    key=("mention_id",),
)  # fmt: skip

RELATIONS = TableSchema(
    "relations", 2,
    pa.schema([
        column("relation_id", STRING),
        column("fact_id", STRING),
        column("subject_id", STRING),
        column("object_id", STRING),
        column("predicate", TEXT),
        column("type", STRING, nullable=True),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("extractor", STRING),
        column("start", OFFSET, nullable=True),
        column("end", OFFSET, nullable=True),
        column("confidence", pa.float32(), nullable=True),
        column("decision", STRING),
        column("reasons", list_of(STRING)),
    ]),
    key=("relation_id",),
)  # fmt: skip

FACTS = TableSchema(
    "facts", 1,
    pa.schema([
        column("fact_id", STRING),
        column("text", TEXT),  # what is embedded: "('subject', 'predicate', 'object')"
    ]),
    key=("fact_id",),
)  # fmt: skip

GOVERNANCE = TableSchema(
    "governance", 1,
    pa.schema([
        column("measure", STRING),  # entities | relations | isolated | decisions by reason
        column("before", pa.int64()),
        column("after", pa.int64()),
    ]),
    key=("measure",),
)  # fmt: skip

LINKS = TableSchema(
    "links", 1,
    pa.schema([
        column("entity_id", STRING),
        column("chunk_id", STRING),
        column("doc_id", STRING),
        column("start", OFFSET),
        column("end", OFFSET),
    ]),
    key=("entity_id", "chunk_id", "start", "end"),
)  # fmt: skip

NODES = TableSchema(
    "nodes", 2,
    pa.schema([
        column("node_id", STRING),  # a chunk id, an entity id or a description id
        column("kind", STRING),  # passage | entity | concept | event | claim | description
    ]),
    key=("kind", "node_id"),
)  # fmt: skip

EDGES = TableSchema(
    "edges", 1,
    pa.schema([
        column("kind", STRING),  # relation | passage_entity | passage_name | synonym | title_link
        column("source_id", STRING),
        column("target_id", STRING),  # of passage_entity and passage_name the passage is the source; else source_id < target_id
        column("count", pa.int32()),  # relations, mentions or links behind it, all decisions
        column("accepted", pa.int32()),  # of these, accepted by governance
        # relation: count; passage_entity: 1; passage_name: 1/log2(1+df); synonym: cosine; title_link: 4/(df * passages)
        column("weight", pa.float32()),
    ]),
    key=("kind", "source_id", "target_id"),
    computed=("weight",),
)  # fmt: skip

COMMUNITIES = TableSchema(
    "communities", 1,
    pa.schema([
        column("community_id", STRING),  # of its members, and of its level
        column("level", pa.int32()),  # 0: the coarsest
        column("parent_id", STRING, nullable=True),
        column("members", list_of(STRING)),  # canonical entity ids, sorted
        column("num_edges", pa.int32()),  # accepted edges within
    ]),
    key=("community_id",),
)  # fmt: skip

COMMUNITY_COUNTS = TableSchema(
    "community_counts", 1,
    pa.schema([
        column("measure", STRING),  # entities | edges | communities | isolated
        column("before", pa.int64()),  # in the raw graph
        column("after", pa.int64()),  # in the governed graph
    ]),
    key=("measure",),
)  # fmt: skip

SPAN = struct_of(chunk_id=STRING, doc_id=STRING, start=OFFSET, end=OFFSET)
SUMMARIES = TableSchema(
    "summaries", 1,
    pa.schema([
        column("community_id", STRING),
        column("order", pa.int32()),  # 0, 1, ... of its sentences
        column("text", TEXT),
        column("spans", list_of(SPAN)),  # what it rests on; at least one
    ]),
    key=("community_id", "order"),
)  # fmt: skip

SUMMARY_VECTORS = TableSchema(
    "summary_vectors", 1,
    pa.schema([
        column("community_id", STRING),
        column("vector", list_of(pa.float32())),  # L2-normalised
    ]),
    key=("community_id",),
    computed=("vector",),
)  # fmt: skip

COUNTS = TableSchema(
    "counts", 1,
    pa.schema([column("table", STRING), column("rows", pa.int64())]),
    key=("table",),
)  # fmt: skip

# --- query -----------------------------------------------------------------------------------------------------------

DECOMPOSITION = list_of(struct_of(question=TEXT, answer=TEXT, support_doc_id=STRING))
DEMAND = struct_of(
    demand_id=STRING, description=TEXT, query=TEXT, inputs=list_of(STRING), outputs=list_of(STRING)
)  # query: the text that is retrieved with
HIT = struct_of(
    chunk_id=STRING, rank=pa.int32(), score=pa.float32(),
    retrievers=list_of(struct_of(name=STRING, rank=pa.int32(), score=pa.float32())),
)  # fmt: skip
DEMAND_HITS = struct_of(demand_id=STRING, flags=list_of(STRING), hits=list_of(HIT))
EVENT = struct_of(demand_id=STRING, rank=pa.int32())
CANDIDATE = struct_of(
    chunk_id=STRING, doc_id=STRING, events=list_of(EVENT), num_events=pa.int32(), best_rank=pa.int32(),
    same_title=pa.int32(), score=pa.float32(),
)  # A_q(d), n, rho, g of LineageRAG eq. 5 and 6; score: the best fused score, for ordering beyond the paper  # fmt: skip
SELECTED = struct_of(chunk_id=STRING, doc_id=STRING, pool_rank=pa.int32(), reason=STRING)
BINDING = struct_of(variable=STRING, value=TEXT)
ANNOTATION = struct_of(
    demand_id=STRING, chunk_id=STRING, doc_id=STRING, start=OFFSET, end=OFFSET, quote=TEXT, type=STRING,
    consumes=list_of(BINDING), produces=list_of(BINDING), score=pa.float32(),
)  # w = (demand, passage, span, a_w) of LineageRAG, with the grounder's score  # fmt: skip
FEATURE = struct_of(name=STRING, value=pa.float32())
SUFFICIENCY = struct_of(
    sufficient=pa.bool_(), score=pa.float32(), threshold=pa.float32(), calibration=STRING, reason=STRING,
    open_demands=list_of(STRING), features=list_of(FEATURE),
)  # fmt: skip
CITATION = struct_of(doc_id=STRING, start=OFFSET, end=OFFSET, quote=TEXT)

QUESTIONS = TableSchema(
    "questions", 1,
    pa.schema([
        column("id", STRING),
        column("question", TEXT),
        column("answers", list_of(TEXT)),
        column("answerable", pa.bool_(), nullable=True),
        column("supporting_doc_ids", list_of(STRING)),
        column("decomposition", DECOMPOSITION),
        column("type", STRING, nullable=True),
        column("access", list_of(STRING)),
        *_STATE,  # ok, or skipped with reason "empty question"
    ]),
    key=("id",),
)  # fmt: skip


def _per_question(name: str, type_: pa.DataType, *, computed: bool = False) -> TableSchema:
    """Return the schema of one query stage's output: a column of results beside the row's state, one row per question.

    The column is null where the row's state is not ok; a state set by one stage is carried through all later ones.
    """
    fields = [column("id", STRING), *_STATE, column(name, type_, nullable=True)]
    return TableSchema(name, 1, pa.schema(fields), key=("id",), computed=(name,) if computed else ())


DEMANDS = _per_question("demands", list_of(DEMAND))
LISTS = _per_question("lists", list_of(DEMAND_HITS), computed=True)
POOLS = _per_question("pool", list_of(CANDIDATE), computed=True)
SELECTIONS = _per_question("selection", list_of(SELECTED))
ANNOTATIONS = _per_question("annotations", list_of(ANNOTATION), computed=True)
SUFFICIENCIES = _per_question("sufficiency", SUFFICIENCY, computed=True)
REPLY = struct_of(
    answer=TEXT, explanation=TEXT, outcome=STRING, refusal_reason=STRING, citations=list_of(CITATION),
    open_demands=list_of(STRING),
)  # fmt: skip
REPLIES = _per_question("reply", REPLY)

ANSWERS = TableSchema(
    "answers", 1,
    pa.schema([
        column("id", STRING),
        column("answer", TEXT, nullable=True),  # short answer; None where refused or not processed
        column("explanation", TEXT, nullable=True),  # sentences, each tied to the citation of its number
        column("outcome", STRING, nullable=True),  # answered | refused; None where state is not ok
        column("reason", STRING),  # open_demand | below_threshold | no_evidence | not_permitted; or the state's reason
        column("state", STRING),
        column("citations", list_of(CITATION)),
        column("open_demands", list_of(STRING)),
    ]),
    key=("id",),
)  # fmt: skip

RANKINGS = TableSchema(
    "rankings", 1,
    pa.schema([
        column("id", STRING),
        column("doc_id", STRING),
        column("chunk_id", STRING),
        column("rank", pa.int32()),  # 1, 2, ...: the selected passages first, in pool order, then the rest of the pool
        column("score", pa.float32()),
        column("selected", pa.bool_()),
    ]),
    key=("id", "rank"),
    computed=("score",),
)  # fmt: skip

LINEAGES = TableSchema(
    "lineages", 1,
    pa.schema([
        column("id", STRING),
        column("demands", list_of(DEMAND)),
        column("pool", list_of(CANDIDATE)),
        column("selection", list_of(SELECTED)),
        column("annotations", list_of(ANNOTATION)),
        column("sufficiency", SUFFICIENCY, nullable=True),
    ]),
    key=("id",),
    computed=("pool", "annotations", "sufficiency"),
)  # fmt: skip

CHANGES = TableSchema(
    "changes", 1,
    pa.schema([
        column("id", STRING),
        column("change", STRING),  # same | new | answered | refused | answer | citations | unfinished
        column("before", TEXT, nullable=True),  # short answer of the run before; None where it refused or had none
        column("after", TEXT, nullable=True),
        column("answered_again", pa.bool_()),  # its evidence was not what it was
        column("lost_citations", list_of(CITATION)),  # cited before, and no longer in the index
    ]),
    key=("id",),
)  # fmt: skip

TABLES = {table.name: table for table in list(vars().values()) if isinstance(table, TableSchema)}
