"""Entities and facts: units that agree in their normal forms are one.

Alignment is exact on `spans.normal_form`, which keeps every script's letters and every punctuation mark, so the id
written here is the id computed from the same name anywhere else.
"""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from gpu_rag import ids, schemas
from gpu_rag.spans import normal_form

CO_MENTIONED = "co-mentioned"  # predicate of the relation that only says: one sentence names both


class NormalForms(dict[str, str]):
    """Normal forms by name, each computed once."""

    def __missing__(self, name: str) -> str:
        """Compute and keep the normal form of a name."""
        form = self[name] = normal_form(name)
        return form


def entity_table(unit_mentions: pa.Table, unit_relations: pa.Table) -> pa.Table:
    """Return `schemas.ENTITIES`: one row per normal form among the names of mentions and the ends of relations.

    Its name is the surface form that most units use, the smallest of equals.
    """
    forms = NormalForms()
    surfaces: dict[str, Counter[str]] = {}
    chunks: dict[str, set[str]] = {}
    extractors: dict[str, set[str]] = {}
    for name, chunk_id, extractor in _named(unit_mentions, unit_relations):
        form = forms[name]
        if form not in surfaces:
            surfaces[form], chunks[form], extractors[form] = Counter(), set(), set()
        surfaces[form][name] += 1
        chunks[form].add(chunk_id)
        extractors[form].add(extractor)
    return schemas.ENTITIES.build(
        {
            "entity_id": [ids.entity_id(form) for form in surfaces],
            "canonical_id": [ids.entity_id(form) for form in surfaces],
            "kind": ["entity"] * len(surfaces),
            "type": pa.nulls(len(surfaces), schemas.STRING),
            "sense": [""] * len(surfaces),
            "name": [min(names, key=lambda name, names=names: (-names[name], name)) for names in surfaces.values()],  # type: ignore[misc]
            "normal_form": list(surfaces),
            "names": [sorted(names) for names in surfaces.values()],
            "aliases": [[]] * len(surfaces),
            "extractors": [sorted(names) for names in extractors.values()],
            "num_chunks": [len(found) for found in chunks.values()],
        }
    )


def fact_table(unit_relations: pa.Table) -> pa.Table:
    """Return `schemas.FACTS`: one row per distinct triple of normal forms, as HippoRAG 2 writes it for embedding.

    Co-mentions state no fact of their own (their text is the sentence, embedded as such) and have no row. The facts of
    relations that governance rejects are here too: the raw graph uses them.
    """
    forms = NormalForms()
    facts = {}
    for subject, predicate, object_ in _triples(unit_relations):
        if predicate != CO_MENTIONED:
            triple = (forms[subject], forms[predicate], forms[object_])
            facts[triple] = ids.fact_id(*triple)
    return schemas.FACTS.build({"fact_id": list(facts.values()), "text": [str(triple) for triple in facts]})


def _triples(unit_relations: pa.Table) -> Iterator[tuple[str, str, str]]:
    columns = (unit_relations.column(name).to_pylist() for name in ("subject", "predicate", "object"))
    return zip(*columns, strict=True)


def _named(unit_mentions: pa.Table, unit_relations: pa.Table) -> Iterator[tuple[str, str, str]]:
    """Yield (name, chunk id, extractor) of every mention and both ends of every relation."""
    for table, name_columns in ((unit_mentions, ("name",)), (unit_relations, ("subject", "object"))):
        for name_column in name_columns:
            columns = (table.column(name).to_pylist() for name in (name_column, "chunk_id", "extractor"))
            yield from zip(*columns, strict=True)
