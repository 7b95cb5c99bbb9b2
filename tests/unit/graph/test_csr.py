"""Behaviour of gpu_rag.graph.csr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import InputError
from gpu_rag.graph import CsrGraph, build_csr, read_csr, save_csr

Edges = list[tuple[int, int, float]]


def build(num_nodes: int, edges: Edges, *, undirected: bool) -> CsrGraph:
    source, target, weights = (np.array(column) for column in zip(*edges, strict=True)) if edges else (np.zeros(0),) * 3
    return build_csr(num_nodes, source.astype(int), target.astype(int), weights, undirected=undirected)


def scipy_csr(num_nodes: int, edges: Edges, *, undirected: bool) -> scipy.sparse.csr_matrix:
    rows, columns, weights = [], [], []
    for source, target, weight in edges:
        rows.append(source), columns.append(target), weights.append(weight)
        if undirected:
            rows.append(target), columns.append(source), weights.append(weight)
    matrix = scipy.sparse.coo_matrix((weights, (rows, columns)), shape=(num_nodes, num_nodes), dtype=np.float64).tocsr()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def assert_equals_scipy(graph: CsrGraph, matrix: scipy.sparse.csr_matrix) -> None:
    np.testing.assert_array_equal(graph.indptr.numpy(), matrix.indptr)
    np.testing.assert_array_equal(graph.indices.numpy(), matrix.indices)
    np.testing.assert_allclose(graph.weights.numpy(), matrix.data, rtol=1e-6)


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, Edges]:
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    weight = st.one_of(st.just(0.0), st.floats(0.001, 1000.0))
    return num_nodes, draw(st.lists(st.tuples(node, node, weight), max_size=40))


@settings(deadline=None, max_examples=60)
@given(edge_lists(), st.booleans())
def test_built_graph_equals_scipy(case: tuple[int, Edges], undirected: bool) -> None:
    num_nodes, edges = case
    graph = build(num_nodes, edges, undirected=undirected)
    assert_equals_scipy(graph, scipy_csr(num_nodes, edges, undirected=undirected))


@settings(deadline=None, max_examples=40)
@given(edge_lists(), st.booleans(), st.randoms(use_true_random=False))
def test_graph_does_not_depend_on_the_order_of_edges(case: tuple[int, Edges], undirected: bool, random) -> None:
    num_nodes, edges = case
    shuffled = list(edges)
    random.shuffle(shuffled)
    one, other = (build(num_nodes, listed, undirected=undirected) for listed in (edges, shuffled))
    for name in ("indptr", "indices", "weights"):
        assert torch.equal(getattr(one, name), getattr(other, name))


STAR = {
    "star": [(0, leaf, 1.0) for leaf in range(1, 6)],
    "reverse star": [(leaf, 0, 1.0) for leaf in range(1, 6)],
    "last rows empty": [(0, 1, 1.0), (1, 0, 1.0)],
    "first row empty": [(4, 5, 1.0), (5, 4, 1.0)],
    "no edge": [],
}


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("name", STAR)
def test_offsets_of_stars_and_empty_rows_equal_scipy(name: str, undirected: bool) -> None:
    assert_equals_scipy(build(6, STAR[name], undirected=undirected), scipy_csr(6, STAR[name], undirected=undirected))


def test_isolated_node_keeps_its_row() -> None:
    source = np.array([node for node in range(999) if node not in (122, 123)])
    graph = build_csr(1000, source, source + 1, undirected=True)
    assert graph.num_nodes == 1000
    assert graph.indptr[124] == graph.indptr[123]


def test_zero_weight_is_no_edge_and_a_missing_weight_is_one() -> None:
    assert build(3, [(0, 1, 0.0), (1, 2, 2.0)], undirected=False).weights.tolist() == [2.0]
    assert build_csr(3, np.array([0, 1]), np.array([1, 2]), undirected=False).weights.tolist() == [1.0, 1.0]


def test_parallel_edges_are_summed_once_in_both_directions_of_an_undirected_graph() -> None:
    graph = build(2, [(0, 1, 1.0), (1, 0, 2.0), (0, 1, 4.0)], undirected=True)
    assert graph.indices.tolist() == [1, 0]
    assert graph.weights.tolist() == [7.0, 7.0]


def test_self_loop_counts_once_directed_and_twice_undirected() -> None:
    assert build(1, [(0, 0, 3.0)], undirected=False).weights.tolist() == [3.0]
    assert build(1, [(0, 0, 3.0)], undirected=True).weights.tolist() == [6.0]


def test_torch_and_numpy_edges_give_the_same_graph() -> None:
    source, target = np.array([2, 0, 1], np.int32), np.array([0, 1, 2], np.uint8)
    one = build_csr(3, source, target, undirected=True)
    other = build_csr(3, torch.from_numpy(source), torch.from_numpy(target), torch.ones(3), undirected=True)
    assert torch.equal(one.indices, other.indices)
    assert one.indices.dtype == torch.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, [], []), "num_nodes=-1"),
        ((2, [0, 2], [1, 1]), r"source\[1\]=2"),
        ((2, [0, 1], [1, -1]), r"target\[1\]=-1"),
        ((0, [0], [0]), r"source\[0\]=0"),
        ((2, [0.0], [1]), "source is float64"),
        ((2, [0, 1], [1]), "target has 1 edges, source has 2"),
        ((2, [0], [1], [1.0, 2.0]), "weights has 2 edges"),
        ((2, [0, 0], [1, 1], [1.0, np.nan]), r"weights\[1\]=nan"),
        ((2, [0], [1], [np.inf]), r"weights\[0\]=inf"),
        ((2, [0], [1], [-1.0]), r"weights\[0\]=-1"),
        ((2, [0], [1], ["a"]), "weights is <U1"),
        ((2, [0, 0], [1, 1], [3e38, 3e38]), r"edge \(0, 1\)"),
    ],
)
def test_wrong_edges_are_refused_by_name(arguments: tuple, message: str) -> None:
    num_nodes, *lists = arguments
    with pytest.raises(InputError, match=message):
        build_csr(num_nodes, *(np.array(values, dtype=None if values else int) for values in lists), undirected=False)


def graph_of(indptr: list[int], indices: list[int], weights: list[float], undirected: bool = False) -> CsrGraph:
    return CsrGraph(
        torch.tensor(indptr, dtype=torch.int64),
        torch.tensor(indices, dtype=torch.int32),
        torch.tensor(weights),
        undirected,
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([], [], []), "indptr is empty"),
        (([0, 2, 1], [0], [1.0]), "row 1: indptr falls from 2 to 1"),
        (([0, 1], [], []), "indptr runs from 0 to 1"),
        (([0, 1], [0], [1.0, 1.0]), "weights has 2 edges"),
        (([0, 0, 2], [1, 0], [1.0, 1.0]), "row 1: column 0 is not above"),
        (([0, 2, 2], [1, 1], [1.0, 1.0]), "row 0: column 1 is not above"),
        (([0, 0, 1], [2], [1.0]), "row 1: column 2 is no node"),
        (([0, 1, 1], [-1], [1.0]), "row 0: column -1 is no node"),
        (([0, 0, 0, 1], [0], [float("nan")]), "row 2: weight nan"),
        (([0, 1], [0], [-1.0]), "row 0: weight -1.0"),
        (([0, 1, 1], [1], [1.0], True), "row 0: undirected=True"),
        (([0, 1, 2], [1, 0], [1.0, 2.0], True), "undirected=True"),
    ],
)
def test_arrays_that_break_a_rule_are_refused_with_their_row(arrays: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        graph_of(*arrays)


def test_wrong_dtype_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"weights is torch\.float64"):
        CsrGraph(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), torch.zeros(0).double(), False)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("edges", [[], [(0, 1, 1.5), (2, 2, 1.0)]])
def test_saved_graph_reads_back_equal(tmp_path: Path, edges: Edges, mmap: bool) -> None:
    graph = build(4, edges, undirected=True)
    save_csr(graph, tmp_path / "graph")
    again = read_csr(tmp_path / "graph", mmap=mmap)
    assert again.undirected
    for name in ("indptr", "indices", "weights"):
        assert torch.equal(getattr(again, name), getattr(graph, name))
    assert sorted(path.name for path in (tmp_path / "graph").iterdir()) == [
        "header.json", "indices.npy", "indptr.npy", "weights.npy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_nodes", 5, "num_nodes=5, the arrays have 4"),
        ("num_edges", 9, "num_edges=9, the arrays have 2"),
        ("format_version", 99, "format_version=99"),
        ("undirected", None, "no undirected"),
        ("undirected", False, None),
        ("dtypes", {"indptr": "int64", "indices": "int64", "weights": "float32"}, r"indices\.npy is int32"),
    ],
)
def test_header_that_does_not_fit_is_refused_by_name(tmp_path: Path, field: str, value: object, message: str) -> None:
    save_csr(build(4, [(0, 1, 1.0)], undirected=True), tmp_path)
    header = json.loads((tmp_path / "header.json").read_text())
    (tmp_path / "header.json").write_text(json.dumps(header | {field: value}))
    if message is None:
        assert read_csr(tmp_path).undirected is False
    else:
        with pytest.raises(InputError, match=message):
            read_csr(tmp_path)


@pytest.mark.parametrize("name", ["header.json", "indptr.npy", "indices.npy", "weights.npy"])
@pytest.mark.parametrize("content", [None, b"", b"{broken"])
def test_missing_or_broken_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None) -> None:
    save_csr(build(4, [(0, 1, 1.0)], undirected=True), tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_csr(tmp_path)


def test_pickled_array_is_refused(tmp_path: Path) -> None:
    save_csr(build(4, [(0, 1, 1.0)], undirected=True), tmp_path)
    np.save(tmp_path / "weights.npy", np.array([object(), None]), allow_pickle=True)
    with pytest.raises(InputError, match=r"weights\.npy"):
        read_csr(tmp_path)


def test_array_changed_after_saving_is_refused(tmp_path: Path) -> None:
    save_csr(build(4, [(0, 1, 1.0)], undirected=True), tmp_path)
    np.save(tmp_path / "indices.npy", np.array([1, 7], np.int32))
    with pytest.raises(InputError, match="row 1: column 7"):
        read_csr(tmp_path)


def test_graph_package_imports_with_torch_and_numpy_alone() -> None:
    program = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "pyarrow", "ray", "vllm", "faiss", "pydantic", "scipy", "igraph"}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
import numpy, torch
import gpu_rag.graph as graph
ring = graph.build_csr(3, numpy.array([0, 1, 2]), numpy.array([1, 2, 0]), undirected=True)
result = graph.personalized_pagerank(ring, torch.eye(3))
assert abs(float(result.scores.sum()) - 3) < 1e-5
assert not {"numba", "pyarrow"} & set(sys.modules)
try:
    graph.personalized_pagerank(ring, torch.eye(3), backend="numba")
except ImportError as error:
    assert "numba" in str(error)
else:
    raise SystemExit("numba was not missed")
"""
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
