"""What governance did, in numbers: the raw graph (before) against the governed one (after)."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpu_rag import schemas
from gpu_rag.index.coding import Ints, coded

DECISIONS = ("accept", "review", "reject")
Count = tuple[str, int, int]


def governance_table(
    entities: pa.Table, mentions: pa.Table, relations: pa.Table, ends: tuple[Ints, Ints, Ints], canonical: Ints
) -> pa.Table:
    """Return `schemas.GOVERNANCE`.

    The raw graph has an entity per normal form and every relation; the governed one an entity per canonical id that an
    accepted unit names, and the accepted relations. An entity is isolated if no relation joins it to another one, an edge a
    pair of entities that relations join.

    Args:
        entities: `schemas.ENTITIES`.
        mentions: `schemas.MENTIONS`, in the row order of `ends`.
        relations: `schemas.RELATIONS`, likewise.
        ends: Entity rows of mentions, subjects and objects.
        canonical: Entity row that each entity is aligned with.
    """
    of_mention, subjects, objects = ends
    raw = coded(entities.column("normal_form")).codes
    taken, joined = (np.asarray(pc.equal(table.column("decision"), "accept"), bool) for table in (mentions, relations))
    admitted = np.unique(np.concatenate([of_mention[taken], subjects[joined], objects[joined]]))
    governed = np.unique(canonical[admitted])
    before, after = _edges(raw[subjects], raw[objects]), _edges(canonical[subjects[joined]], canonical[objects[joined]])
    num_raw = len(np.unique(raw))
    rows: list[Count] = [
        ("entities", num_raw, len(governed)),
        ("entities.merged", 0, len(admitted) - len(governed)),
        ("entities.split", 0, entities.num_rows - num_raw),
        ("edges", len(before), len(after)),
        ("isolated_entities", num_raw - len(np.unique(before)), len(governed) - len(np.unique(after))),
        *_entities_by_kind(entities, raw, governed),
    ]
    rows += _units("mentions", mentions, taken)
    rows += _units("relations", relations, joined)
    measures, befores, afters = zip(*rows, strict=True)
    return schemas.GOVERNANCE.build({"measure": list(measures), "before": list(befores), "after": list(afters)})


def by_decision(units: pa.Table, decision: str) -> pa.Table:
    """Return the rows of `schemas.MENTIONS` or `RELATIONS` with one decision: the accept, review or reject table."""
    return units.filter(pc.equal(units.column("decision"), decision))


def _edges(subjects: Ints, objects: Ints) -> NDArray[np.int64]:
    """Return the distinct pairs of different entities, int64 (P, 2)."""
    pairs = np.stack([np.minimum(subjects, objects), np.maximum(subjects, objects)], axis=1)
    return np.unique(pairs[subjects != objects], axis=0)


def _entities_by_kind(entities: pa.Table, raw: Ints, governed: Ints) -> Iterator[Count]:
    kinds = np.array(entities.column("kind").to_pylist(), object)
    _, first = np.unique(raw, return_index=True)
    for kind in sorted(set(kinds.tolist())):
        yield f"entities.kind.{kind}", int((kinds[first] == kind).sum()), int((kinds[governed] == kind).sum())


def _units(kind: str, units: pa.Table, accepted: NDArray[np.bool_]) -> Iterator[Count]:
    """Yield the counts of units: all, per extractor, per decision below accept, and per decision and reason."""
    yield kind, units.num_rows, int(accepted.sum())
    extractors = coded(units.column("extractor"))
    for code, extractor in enumerate(extractors.values.to_pylist()):
        of_extractor = extractors.codes == code
        yield f"{kind}.{extractor}", int(of_extractor.sum()), int((of_extractor & accepted).sum())
    for decision in DECISIONS:
        chosen = by_decision(units, decision)
        if decision != "accept" and chosen.num_rows:
            yield f"{kind}.{decision}", chosen.num_rows, 0
        reasons = pc.value_counts(pc.list_flatten(chosen.column("reasons")))
        for reason, count in sorted((row["values"], row["counts"]) for row in reasons.to_pylist()):
            yield f"{kind}.{decision}.{reason}", count, count if decision == "accept" else 0
