"""Stage 05, embed: one vector per distinct text.

Input:  chunks, sentences, and the extracted units.
Output: `schemas.VECTORS` (one row per distinct text) and `schemas.EMBEDDINGS` (which item has which vector).
Device: GPU or CPU, as the encoder is.

Embedded texts: of a chunk, title + newline + text; of a sentence, "title: sentence"; of an entity, its name; of a description,
its text; of a fact, the Python form of the triple, as HippoRAG 2 embeds it. Equal texts are encoded once, whichever items have
them; what the encoder's length limit cuts is counted per text in `cut_tokens`.
"""

from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder, EncoderConfig
from gpu_rag.ids import vector_id
from gpu_rag.index.entities import description_table, fact_table, resolve
from gpu_rag.schemas import STRING, TEXT, column, list_of
from gpu_rag.spans import body_start
from gpu_rag.stage import Cardinality, Resources, RowStage, Tables

Kind = Literal["chunk", "sentence", "entity", "description", "fact"]


class EmbedConfig(BaseModel):
    """The encoder, and what it embeds."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    encoder: EncoderConfig = EncoderConfig()
    kinds: tuple[Kind, ...] = ("chunk", "sentence", "entity", "description", "fact")


def embed(work: pa.Table, *, config: EmbedConfig, encoder: Encoder) -> pa.Table:
    """Return the vector of each text, float32, L2-normalised, with its token counts."""
    encoded = encoder.encode(work.column("text").to_pylist(), kind="passage")
    offsets = pa.array(range(0, encoded.vectors.size + 1, encoder.dim), pa.int32())
    vectors = pa.ListArray.from_arrays(offsets, pa.array(encoded.vectors.reshape(-1)), type=list_of(pa.float32()))
    return pa.table(
        {
            "work_key": work.column("work_key"),
            "state": pa.array(["ok"] * work.num_rows, STRING),
            "reason": pa.array([""] * work.num_rows, STRING),
            "vector": vectors,
            "num_tokens": pa.array(encoded.num_tokens, pa.int32()),
            "cut_tokens": pa.array(encoded.cut_tokens, pa.int32()),
            "cut_texts": pa.array(encoded.cut_tokens > 0).cast(pa.int32()),
        }
    )


def embedded_items(tables: Tables, config: EmbedConfig) -> Iterator[tuple[Kind, str, str]]:
    """Yield (kind, item id, embedded text) of every item the config asks for."""
    if "chunk" in config.kinds:
        chunks = tables["chunks"]
        documents = tables["documents"]
        texts = dict(zip(documents.column("doc_id").to_pylist(), documents.column("text").to_pylist(), strict=True))
        for row in chunks.select(["chunk_id", "doc_id", "start", "title", "text"]).to_pylist():
            has_title = row["start"] < body_start(row["title"], texts[row["doc_id"]]) or not row["title"]
            yield "chunk", row["chunk_id"], row["text"] if has_title else f"{row['title']}\n{row['text']}"
    if "sentence" in config.kinds:
        chunks = tables["chunks"]
        titles = dict(zip(chunks.column("chunk_id").to_pylist(), chunks.column("title").to_pylist(), strict=True))
        for row in tables["sentences"].select(["sentence_id", "chunk_id", "text"]).to_pylist():
            title = titles[row["chunk_id"]]
            yield "sentence", row["sentence_id"], f"{title}: {row['text']}" if title else row["text"]
    yield from _unit_items(tables, config)


def _unit_items(tables: Tables, config: EmbedConfig) -> Iterator[tuple[Kind, str, str]]:
    if not {"entity", "description", "fact"} & set(config.kinds):
        return
    resolved = resolve(tables["chunks"], tables["unit_mentions"], tables["unit_relations"])
    columns: list[tuple[Kind, pa.Table, str, str]] = []
    if "entity" in config.kinds:
        columns.append(("entity", resolved.entities, "entity_id", "name"))
    if "description" in config.kinds:
        columns.append(("description", description_table(tables["unit_mentions"], resolved), "description_id", "text"))
    if "fact" in config.kinds:
        columns.append(("fact", fact_table(tables["unit_relations"], resolved), "fact_id", "text"))
    for kind, table, item, text in columns:
        for item_id, embedded in zip(table.column(item).to_pylist(), table.column(text).to_pylist(), strict=True):
            yield kind, item_id, embedded


def _content(tables: Tables, config: EmbedConfig) -> pa.Table:
    """Return each distinct text once, by its vector's id, with the items that have it: kind + item id."""
    items: dict[str, list[str]] = {}
    for kind, item, text in embedded_items(tables, config):
        items.setdefault(text, []).append(f"{kind} {item}")
    ids = sorted((vector_id(text), text) for text in items)
    return pa.table(
        {
            "row_id": pa.array([name for name, _ in ids], STRING),
            "text": pa.array([text for _, text in ids], TEXT),
            "items": pa.array([items[text] for _, text in ids], list_of(STRING)),
        }
    )


def _assemble(tables: Tables, results: pa.Table, config: EmbedConfig) -> dict[str, pa.Table]:
    done = results.filter(pc.equal(results.column("state"), "ok"))
    vectors = schemas.VECTORS.sort(done.rename_columns({"row_id": "vector_id"}).select(schemas.VECTORS.schema.names))
    items = done.column("items").combine_chunks()
    kinds, item_ids = pc.split_pattern(items.flatten(), " ", max_splits=1), done.column("row_id").combine_chunks()
    embeddings = schemas.EMBEDDINGS.build(
        {
            "kind": pc.list_element(kinds, 0),
            "item_id": pc.list_element(kinds, 1),
            "vector_id": item_ids.take(pc.list_parent_indices(items)),
        }
    )
    return {"vectors": vectors.cast(schemas.VECTORS.schema), "embeddings": embeddings}


STAGE = RowStage(
    number=5,
    name="embed",
    version=2,
    reads=("documents", "chunks", "sentences", "unit_mentions", "unit_relations"),
    writes=(schemas.VECTORS, schemas.EMBEDDINGS),
    cardinality=Cardinality.MANY_TO_MANY,
    engines=("encoder",),
    resources=Resources(gpus=1),
    payload=pa.schema([
        column("vector", list_of(pa.float32())),
        column("num_tokens", pa.int32()),
        column("cut_tokens", pa.int32()),
        column("cut_texts", pa.int32()),
    ]),
    content=_content,
    run=embed,
    assemble=_assemble,
    unkeyed=("items",),
    passed=("items",),
    metrics=("num_tokens", "cut_tokens", "cut_texts"),
    not_keyed={"kinds": True, "encoder": {"model", "max_tokens", "query_instruction"}},
)  # fmt: skip
