"""Name linking: where the known names stand in the whole corpus."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.index.entities import NormalForms
from gpu_rag.names import Gazetteer, without_parenthesis


def link_table(chunks: pa.Table, entities: pa.Table, mentions: pa.Table) -> pa.Table:
    """Return `schemas.LINKS`: every place of an entity's name that the gazetteer finds, and every accepted mention.

    In the gazetteer are the entities that are titles, the names of two or more words, and the one-word names of two or
    more chunks: a single word that one chunk alone has is as often a capitalised common word as a name.
    """
    entries = [(entity, name) for entity, names in gazetteer_names(chunks, entities) for name in names]
    gazetteer = Gazetteer(name for _, name in entries)
    links: set[tuple[str, str, str, int, int]] = set()
    for row in chunks.select(["chunk_id", "doc_id", "start", "text"]).to_pylist():
        for start, end, index in gazetteer.find(row["text"]):
            place = (row["start"] + start, row["start"] + end)
            links.add((entries[index][0], row["chunk_id"], row["doc_id"], *place))
    accepted = mentions.filter(pc.equal(mentions.column("decision"), "accept"))
    columns = (accepted.column(name).to_pylist() for name in schemas.LINKS.schema.names)
    links.update(zip(*columns, strict=True))
    values = zip(*sorted(links), strict=True) if links else [()] * len(schemas.LINKS.schema)
    return schemas.LINKS.build(dict(zip(schemas.LINKS.schema.names, map(list, values), strict=True)))


def gazetteer_names(chunks: pa.Table, entities: pa.Table) -> Iterable[tuple[str, list[str]]]:
    """Yield (entity id, surface names) of the entities that are looked for in every chunk."""
    forms = NormalForms()
    titles = pc.unique(chunks.column("title")).to_pylist()
    titled = {forms[form] for title in titles for form in (title, without_parenthesis(title))}
    columns = (entities.column(name).to_pylist() for name in ("entity_id", "normal_form", "names", "num_chunks"))
    for entity, form, names, num_chunks in zip(*columns, strict=True):
        if form in titled or num_chunks > 1 or len(form.split()) > 1:
            yield entity, names
