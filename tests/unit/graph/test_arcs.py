"""The arc table: its rules, and what a save keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph import ArcGraph, read_arcs, save_arcs


def arcs(*pairs: tuple[int, int], num_nodes: int = 6) -> ArcGraph:
    ends = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)
    return ArcGraph(num_nodes, ends[:, 0].contiguous(), ends[:, 1].contiguous())


def test_incidence_lists_the_arcs_at_both_ends_in_arc_order_without_loops() -> None:
    indptr, found, neighbours, outgoing = arcs((3, 1), (1, 3), (2, 2), (1, 4), (3, 1)).incidence
    assert indptr.tolist() == [0, 0, 4, 4, 7, 8, 8]
    assert found.tolist() == [0, 1, 3, 4, 0, 1, 4, 3]
    assert neighbours.tolist() == [3, 3, 4, 3, 1, 1, 1, 1]
    assert outgoing.tolist() == [False, True, True, False, True, False, True, False]


@pytest.mark.parametrize("pairs", [(), ((0, 5),), ((5, 0), (0, 0), (5, 0))])
def test_saved_arcs_are_read_back(pairs: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    graph = arcs(*pairs)
    save_arcs(graph, tmp_path)
    back = read_arcs(tmp_path)
    assert back.num_nodes == 6
    assert torch.equal(back.source, graph.source)
    assert torch.equal(back.target, graph.target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["header.json", "source.npy", "target.npy"]


def test_an_end_outside_is_refused_naming_the_arc() -> None:
    with pytest.raises(InputError, match="arc 1: target 6 is no node"):
        arcs((0, 1), (2, 6))
    with pytest.raises(InputError, match="arc 0: source -1 is no node"):
        arcs((-1, 1))
    with pytest.raises(InputError, match="source is"):
        ArcGraph(3, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32))


def test_files_that_do_not_fit_are_refused_naming_file_and_field(tmp_path: Path) -> None:
    save_arcs(arcs((0, 1), (2, 3)), tmp_path)
    np.save(tmp_path / "target.npy", np.array([1], np.int32))
    with pytest.raises(InputError, match="target has 1 arcs, source has 2"):
        read_arcs(tmp_path)
    np.save(tmp_path / "target.npy", np.array([1, 3]))
    with pytest.raises(InputError, match=r"target.npy is int64"):
        read_arcs(tmp_path)
    (tmp_path / "header.json").unlink()
    with pytest.raises(InputError, match=r"cannot read .*header.json"):
        read_arcs(tmp_path)
