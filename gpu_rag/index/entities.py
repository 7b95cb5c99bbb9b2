"""Entities and facts: units that agree in the normal form of their names are one, unless senses keep them apart.

An entity's id is that of its normal form (`spans.normal_form` keeps every script's letters and every punctuation mark), and of
its sense where homonyms in conflict stay apart (`index.senses`). All of it follows from chunks and units alone, so the ids are
the same wherever they are computed.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import ids, schemas
from gpu_rag.index.coding import Coded, Ints, coded, codes_of, distinct_pairs, first_by, lists_by
from gpu_rag.index.senses import Named, document_senses
from gpu_rag.schemas import STRING, TEXT
from gpu_rag.spans import normal_form

CO_MENTIONED = "co-mentioned"  # predicate of the relation that only says: one sentence names both
KINDS = ("entity", "concept", "event", "claim")
_SURFACE_TYPES = ("name", "title")  # say how a name was spotted, not what it is


class NormalForms(dict[str, str]):
    """Normal forms by name, each computed once."""

    def __missing__(self, name: str) -> str:
        """Compute and keep the normal form of a name."""
        form = self[name] = normal_form(name)
        return form


class Resolved(NamedTuple):
    """Which entity every unit names.

    Attributes:
        entities: `schemas.ENTITIES`, each its own canonical entity.
        mentions: int64, row among the entities of each mention.
        subjects: int64, of each relation's subject; `objects` likewise.
    """

    entities: pa.Table
    mentions: Ints
    subjects: Ints
    objects: Ints


def resolve(chunks: pa.Table, unit_mentions: pa.Table, unit_relations: pa.Table) -> Resolved:
    """Return the entities: one per normal form and sense among the names of mentions and the ends of relations."""
    names = coded(unit_mentions.column("name"), unit_relations.column("subject"), unit_relations.column("object"))
    forms = coded(pa.chunked_array([[normal_form(name) for name in names.values.to_pylist()]], TEXT))
    form_of_row = forms.codes[names.codes]
    documents = coded(chunks.column("doc_id"))
    doc_of_row = _three(unit_mentions, unit_relations, "doc_id", documents.values)
    num_mentions, num_relations = unit_mentions.num_rows, unit_relations.num_rows
    named = Named(forms.values, documents.values, form_of_row[:num_mentions], doc_of_row[:num_mentions])
    atoms, senses = _atoms(named, form_of_row, doc_of_row, document_senses(chunks, unit_mentions, named))
    present, atom_of_row = np.unique(atoms, return_inverse=True)  # a form may have sense atoms only
    normal_forms = forms.values.take(pa.array([senses[a][0] if a in senses else a for a in present.tolist()], pa.int64()))
    sense_of = [senses[a][1] if a in senses else "" for a in present.tolist()]
    entity_ids = [ids.entity_id(form, sense) for form, sense in zip(normal_forms.to_pylist(), sense_of, strict=True)]
    columns = {"entity_id": pa.array(entity_ids, STRING), "canonical_id": pa.array(entity_ids, STRING)}
    columns |= {"normal_form": normal_forms, "sense": pa.array(sense_of, STRING)}
    columns |= _surfaces(names, atom_of_row, len(present))
    columns |= _origins(chunks, unit_mentions, unit_relations, atom_of_row, len(present))
    columns |= _kinds(unit_mentions, atom_of_row[:num_mentions], len(present))
    columns["aliases"] = _aliases(unit_mentions, atom_of_row[:num_mentions], len(present))
    rank = np.empty(len(present), np.int64)
    rank[pc.sort_indices(columns["entity_id"]).to_numpy()] = np.arange(len(present))
    rows = rank[atom_of_row]
    subjects = rows[num_mentions : num_mentions + num_relations]
    return Resolved(schemas.ENTITIES.build(columns), rows[:num_mentions], subjects, rows[num_mentions + num_relations :])


def entity_table(chunks: pa.Table, unit_mentions: pa.Table, unit_relations: pa.Table) -> pa.Table:
    """Return `schemas.ENTITIES` before alignment. An entity's name is the surface form that most units use."""
    return resolve(chunks, unit_mentions, unit_relations).entities


def description_table(unit_mentions: pa.Table, resolved: Resolved) -> pa.Table:
    """Return `schemas.DESCRIPTIONS`: one row per distinct description of an entity, with the first mention that has it."""
    described = flag_rows(pc.greater(pc.fill_null(pc.utf8_length(unit_mentions.column("description")), 0), 0))
    mentions = unit_mentions.take(pa.array(described))
    entity_ids = resolved.entities.column("entity_id").take(pa.array(resolved.mentions[described])).to_pylist()
    found: dict[str, tuple[str, str, str]] = {}
    columns = zip(
        entity_ids, mentions.column("mention_id").to_pylist(), mentions.column("description").to_pylist(), strict=True
    )
    for entity, mention, text in columns:
        key = ids.description_id(entity, text)
        if key not in found or mention < found[key][1]:
            found[key] = (entity, mention, text)
    entities, firsts, texts = (list(values) for values in zip(*found.values(), strict=True)) if found else ([], [], [])
    return schemas.DESCRIPTIONS.build(
        {"description_id": list(found), "entity_id": entities, "mention_id": firsts, "text": texts}
    )


def fact_ids(unit_relations: pa.Table, resolved: Resolved) -> pa.Array:
    """Return the fact that each relation states: equal for equal normal forms and senses."""
    predicates, codes, keys = _triple_parts(unit_relations, resolved)
    triples, inverse = _distinct_triples(resolved, codes)
    distinct = [ids.fact_id(keys[s], predicates[p], keys[o]) for s, p, o in triples.tolist()]
    return pa.array(distinct, STRING).take(pa.array(inverse))


def fact_table(unit_relations: pa.Table, resolved: Resolved) -> pa.Table:
    """Return `schemas.FACTS`: one row per distinct triple of normal forms, as HippoRAG 2 writes it for embedding.

    Co-mentions state no fact of their own (their text is the sentence, embedded as such) and have no row. The facts of
    relations that governance rejects are here too: the raw graph uses them.
    """
    stated = flag_rows(pc.not_equal(unit_relations.column("predicate"), CO_MENTIONED))
    ends = resolved._replace(subjects=resolved.subjects[stated], objects=resolved.objects[stated])
    predicates, codes, keys = _triple_parts(unit_relations.take(pa.array(stated)), ends)
    triples, _ = _distinct_triples(ends, codes)
    forms = resolved.entities.column("normal_form").to_pylist()
    facts = {
        ids.fact_id(keys[s], predicates[p], keys[o]): str((forms[s], predicates[p], forms[o])) for s, p, o in triples.tolist()
    }
    return schemas.FACTS.build({"fact_id": list(facts), "text": list(facts.values())})


def flag_rows(flags: pa.ChunkedArray | pa.Array) -> Ints:
    """Return the rows at which a column of booleans is true."""
    return np.flatnonzero(np.asarray(pc.fill_null(flags, False))).astype(np.int64)


def _triple_parts(unit_relations: pa.Table, resolved: Resolved) -> tuple[list[str], Ints, list[str]]:
    """Return the distinct normal forms of predicates, the one of each relation, and the key of each entity in a fact."""
    given = coded(unit_relations.column("predicate"))
    forms = coded(pa.chunked_array([[normal_form(predicate) for predicate in given.values.to_pylist()]], TEXT))
    columns = (resolved.entities.column(name).to_pylist() for name in ("normal_form", "sense"))
    keys = [f"{form}\n{sense}" if sense else form for form, sense in zip(*columns, strict=True)]
    return forms.values.to_pylist(), forms.codes[given.codes], keys


def _distinct_triples(resolved: Resolved, predicates: Ints) -> tuple[Ints, Ints]:
    triples = np.stack([resolved.subjects, predicates, resolved.objects], axis=1)
    distinct, inverse = np.unique(triples, axis=0, return_inverse=True)
    return distinct, inverse.reshape(-1)


def _three(unit_mentions: pa.Table, unit_relations: pa.Table, name: str, values: pa.Array) -> Ints:
    """Return the codes of a column over mentions, subjects and objects, one after the other."""
    of_relations = codes_of(unit_relations.column(name), values)
    return np.concatenate([codes_of(unit_mentions.column(name), values), of_relations, of_relations])


def _atoms(
    named: Named, form_of_row: Ints, doc_of_row: Ints, senses: dict[tuple[int, int], str]
) -> tuple[Ints, dict[int, tuple[int, str]]]:
    """Return the atom of each row, and (form, sense) of the atoms that have a sense; the others are their forms."""
    if not senses:
        return form_of_row, {}
    num_documents = max(len(named.documents), 1)
    marked = sorted({(form, sense) for (form, _), sense in senses.items()})
    atom_of = {key: len(named.forms) + place for place, key in enumerate(marked)}
    places = sorted(senses)
    keys = np.array([form * num_documents + doc for form, doc in places], np.int64)
    atoms = np.array([atom_of[form, senses[form, doc]] for form, doc in places], np.int64)
    wanted = form_of_row * num_documents + doc_of_row
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, atoms[at], form_of_row), {atom: key for key, atom in atom_of.items()}


def _surfaces(names: Coded, atom_of_row: Ints, num_atoms: int) -> dict[str, pa.Array]:
    atoms, name_codes, counts = distinct_pairs(atom_of_row, names.codes, len(names.values))
    best = first_by(atoms, -counts, name_codes)
    surfaces = names.values.take(pa.array(name_codes))
    return {"name": surfaces.take(pa.array(best)), "names": lists_by(atoms, num_atoms, surfaces, TEXT)}


def _origins(
    chunks: pa.Table, unit_mentions: pa.Table, unit_relations: pa.Table, atom_of_row: Ints, num_atoms: int
) -> dict[str, pa.Array]:
    chunk_ids = coded(chunks.column("chunk_id")).values
    chunk_of_row = _three(unit_mentions, unit_relations, "chunk_id", chunk_ids)
    atoms, _, _ = distinct_pairs(atom_of_row, chunk_of_row, len(chunk_ids))
    extractors = coded(unit_mentions.column("extractor"), unit_relations.column("extractor")).values
    extractor_of_row = _three(unit_mentions, unit_relations, "extractor", extractors)
    owners, codes, _ = distinct_pairs(atom_of_row, extractor_of_row, len(extractors))
    return {
        "num_chunks": pa.array(np.bincount(atoms, minlength=num_atoms), pa.int32()),
        "extractors": lists_by(owners, num_atoms, extractors.take(pa.array(codes)), STRING),
    }


def _kinds(unit_mentions: pa.Table, atom_of_mention: Ints, num_atoms: int) -> dict[str, pa.Array]:
    """Return the kind and type that most mentions of an atom have; one that says what it is beats `name` and `title`."""
    kinds = coded(unit_mentions.column("kind"))
    known = np.isin(np.array(kinds.values.to_pylist(), object), KINDS)
    rows = np.flatnonzero(known[kinds.codes]) if len(kinds.codes) else np.empty(0, np.int64)
    atoms, codes, counts = distinct_pairs(atom_of_mention[rows], kinds.codes[rows], len(kinds.values))
    best = first_by(atoms, -counts, codes)
    kind_of = np.full(num_atoms, KINDS[0], object)
    kind_of[atoms[best]] = np.array(kinds.values.to_pylist(), object)[codes[best]]
    typed = flag_rows(pc.is_valid(unit_mentions.column("type")))
    types = coded(unit_mentions.column("type").take(pa.array(typed)))
    values = types.values.to_pylist()
    shallow = np.isin(np.array(values, object), _SURFACE_TYPES).astype(np.int64)
    atoms, codes, counts = distinct_pairs(atom_of_mention[typed], types.codes, len(values))
    best = first_by(atoms, shallow[codes] if len(codes) else codes, -counts, codes)
    type_of = np.full(num_atoms, None, object)
    type_of[atoms[best]] = np.array(values, object)[codes[best]]
    return {"kind": pa.array(kind_of.tolist(), STRING), "type": pa.array(type_of.tolist(), STRING)}


def _aliases(unit_mentions: pa.Table, atom_of_mention: Ints, num_atoms: int) -> pa.Array:
    rows = flag_rows(pc.greater(pc.fill_null(pc.list_value_length(unit_mentions.column("aliases")), 0), 0))
    given = unit_mentions.column("aliases").take(pa.array(rows))
    lengths = np.asarray(pc.list_value_length(given).to_numpy(), np.int64)
    aliases = coded(pc.list_flatten(given))
    atoms, codes, _ = distinct_pairs(np.repeat(atom_of_mention[rows], lengths), aliases.codes, len(aliases.values))
    return lists_by(atoms, num_atoms, aliases.values.take(pa.array(codes)), TEXT)
