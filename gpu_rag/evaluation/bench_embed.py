"""Benchmark of text embedding: how near the encoder comes to the machine's own float32 matrix product.

Counted are the floating-point operations that real tokens need: per token 2 operations for every weight of the linear
layers, per text of L tokens 4 * L^2 * hidden per layer for attention. Padding, embedding look-up, tokenisation,
normalisations, softmax and GELU count as zero operations, so they lower the share and never raise it; each distinct
text counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from gpu_rag.engines.encoder import EncoderConfig, load_model, open_encoder
from gpu_rag.errors import InputError

TILE_HEIGHTS = (256, 512, 1024, 4096)
_MM_SECONDS = 0.5  # one measurement of the product, per tile height and way of threading


def bench_embedding(texts_by_kind: dict[str, list[str]], config: EncoderConfig, repeats: int = 3) -> dict[str, Any]:
    """Return, per kind of text, the rate of embedding and its share of the float32 rate measured in the same run.

    The float32 rate is `torch.mm` on the model's own products (QKV, attention output, up, down), operations of one
    layer over the seconds of one layer, so each shape weighs by the time it takes. Measured at several tile heights,
    once with torch's threads inside a product and once with one product per core; the best of all of these counts,
    and which one that was stands in `mm_rows` and `mm_threading`. Each repeat measures product, encoder and
    `SentenceTransformer.encode` one after the other, and a share is the median of the repeats' own ratios.
    The `cpu_` values are the same over CPU seconds of the process and one-threaded products: on a machine that other
    processes use too they are the ones to read.

    What limits the share. Floor by operations: 1.0 would need everything but the products to be free. GELU, layer
    norms, residuals and bias touch about 40 kB a token and layer, in cache; softmax and the products inside attention
    are small ((L x 32) x (32 x L) per head), where call overhead and vector tails cost more than arithmetic; the
    tokenizer takes one thread 2 to 5 % of the time. Floor by bytes: a tile of 512 rows reads 7 MB of weights a layer
    for 1.8 GFLOP, far below the memory's rate, so bytes do not limit it.

    Args:
        texts_by_kind: For example passages, facts, names; no list empty.
        config: The encoder to measure; a BERT-like one, on the CPU.
        repeats: At least 1; the first, unmeasured one warms up.

    Raises:
        InputError: A kind without texts, or repeats below 1.
    """
    import torch

    if repeats < 1 or not all(texts_by_kind.values()):
        raise InputError("bench_embedding needs repeats >= 1 and at least one text of every kind")
    encoder = open_encoder(config)
    reference = load_model(config, "cpu")
    if config.max_tokens is not None:
        reference.max_seq_length = config.max_tokens
    shape = reference[0].auto_model.config
    hidden, wide, layers = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
    products = ((hidden, 3 * hidden), (hidden, hidden), (hidden, wide), (wide, hidden))
    kinds = {}
    for kind, texts in texts_by_kind.items():
        distinct = list(dict.fromkeys(texts))
        seen = encoder.encode(distinct)
        vectors = np.asarray(reference.encode(distinct, normalize_embeddings=True, show_progress_bar=False))
        lengths = seen.num_tokens.astype(np.float64) - seen.cut_tokens
        operations = float((lengths * layers * 2 * sum(a * b for a, b in products)).sum())
        operations += float((4 * layers * hidden * lengths**2).sum())
        plain = partial(reference.encode, distinct, normalize_embeddings=True, show_progress_bar=False)
        runs = [
            _Run(_product_rate(products), _timed(partial(encoder.encode, texts)), _timed(plain)) for _ in range(repeats)
        ]
        kinds[kind] = {
            "texts": len(texts),
            "distinct": len(distinct),
            "tokens": int(lengths.sum()),
            "cut_texts": int((seen.cut_tokens > 0).sum()),
            "gflop": operations / 1e9,
            "max_abs_difference": float(np.abs(vectors - seen.vectors).max()),
            **_shares(operations / 1e9, runs),
        }
    return {
        "encoder": encoder.identity,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "repeats": repeats,
        "kinds": kinds,
    }


@dataclass(frozen=True)
class _Seconds:
    """Wall seconds and CPU seconds of the process."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class _Product:
    """The best float32 rate found, in GFLOP/s, and where; `per_cpu` is GFLOP per CPU second, one thread."""

    wall: float
    rows: int
    threading: str
    per_cpu: float


@dataclass(frozen=True)
class _Run:
    """One repeat: product, encoder and plain sentence-transformers, measured one after the other."""

    product: _Product
    encoder: _Seconds
    plain: _Seconds


def _shares(gflop: float, runs: list[_Run]) -> dict[str, Any]:
    """Return medians over the repeats; a share is the median of the repeats' own ratios."""
    best = max(runs, key=lambda run: run.product.wall).product
    return {
        "seconds": median(run.encoder.wall for run in runs),
        "gflop_per_s": median(gflop / run.encoder.wall for run in runs),
        "mm_gflop_per_s": median(run.product.wall for run in runs),
        "mm_rows": best.rows,
        "mm_threading": best.threading,
        "share": median(gflop / run.encoder.wall / run.product.wall for run in runs),
        "plain_gflop_per_s": median(gflop / run.plain.wall for run in runs),
        "plain_share": median(gflop / run.plain.wall / run.product.wall for run in runs),
        "cpu_gflop_per_s": median(gflop / run.encoder.cpu for run in runs),
        "cpu_mm_gflop_per_s": median(run.product.per_cpu for run in runs),
        "cpu_share": median(gflop / run.encoder.cpu / run.product.per_cpu for run in runs),
        "cpu_plain_share": median(gflop / run.plain.cpu / run.product.per_cpu for run in runs),
    }


def _timed(work: Callable[[], object]) -> _Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return _Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def _product_rate(products: Sequence[tuple[int, int]]) -> _Product:
    """Return the best rate of one layer's products over the tile heights and both ways of threading."""
    import torch

    threads = torch.get_num_threads()
    found = []
    for rows in TILE_HEIGHTS:
        wall, _ = _layer_rate(products, rows)
        found.append((wall, rows, "inside a product"))
    per_cpu = 0.0
    for rows in TILE_HEIGHTS[:3]:
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                rates = list(pool.map(lambda _, height=rows: _layer_rate(products, height), range(threads)))
        finally:
            torch.set_num_threads(threads)
        found.append((sum(wall for wall, _ in rates), rows, "one product per core"))
        per_cpu = max(per_cpu, max(cpu for _, cpu in rates))
    return _Product(*max(found), per_cpu=per_cpu)


def _layer_rate(products: Sequence[tuple[int, int]], rows: int) -> tuple[float, float]:
    """Return (GFLOP per wall second, GFLOP per second of this thread) of one layer's products, the shapes by turns."""
    import torch

    generator = torch.Generator().manual_seed(0)
    steps = []
    for inner, outer in products:
        left, right = torch.randn(rows, inner, generator=generator), torch.randn(inner, outer, generator=generator)
        steps.append((left, right, torch.empty(rows, outer)))
    gflop = 2e-9 * rows * sum(inner * outer for inner, outer in products)
    rounds = 0
    with torch.inference_mode():
        for left, right, out in steps:
            torch.mm(left, right, out=out)
        wall, cpu = time.perf_counter(), time.thread_time()
        while rounds < 3 or time.perf_counter() - wall < _MM_SECONDS:
            for left, right, out in steps:
                torch.mm(left, right, out=out)
            rounds += 1
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    return gflop * rounds / wall, gflop * rounds / cpu
