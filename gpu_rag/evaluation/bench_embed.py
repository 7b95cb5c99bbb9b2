"""Benchmark of text embedding: how near the encoder comes to the machine's own float32 matrix product, on the CPU.

The texts are those that stage 05 would embed of a corpus, by kind. Three things are measured one after the other in every
repetition, on one thread and on all: `torch.mm` on the model's own products, our encoder, and plain
`SentenceTransformer.encode` as the peer. A share is the median of the repetitions' own ratios, so a change of the
machine's speed between repetitions cancels out.

Counted are the floating-point operations that real tokens need: per token 2 operations for every weight of the linear
layers, per text of L tokens 4 * L^2 * hidden per layer for attention. Padding, embedding look-up, tokenisation,
normalisations, softmax and GELU count as zero operations, so they lower the share and never raise it.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpu_rag.config import Config
from gpu_rag.engines.encoder import Encoder, open_encoder
from gpu_rag.engines.encoder_bert import BertEncoder
from gpu_rag.engines.encoder_st import load_model
from gpu_rag.errors import ConfigError, EngineError, InputError
from gpu_rag.evaluation.chunked import chunked_here
from gpu_rag.evaluation.roofline import cpu_model
from gpu_rag.index import s04_extract
from gpu_rag.index.s01_ingest import read_corpus
from gpu_rag.index.s05_embed import embedded_items
from gpu_rag.stage import run_here

TOKEN_BUDGET = 8_000  # of one kind in one measurement: some seconds of work for one core
MAX_DIFFERENCE = 1e-4
_PRODUCT_ROWS = (512, 2048)
_PRODUCT_SECONDS = 0.3  # one measurement of the product at one number of rows
_COPY_FLOATS = 1 << 25


def bench_corpus(corpus: Path, config: Config, *, repeats: int, limit: int | None) -> dict[str, Any]:
    """Return, per kind of text, the rate of embedding, its share of the float32 rate, and the peer's.

    Args:
        corpus: A file, or a folder (see `s01_ingest`); recorded extractions are used where they stand beside it.
        config: Sections ingest, chunk, extract and embed; the device is the CPU whatever it says.
        repeats: Repetitions, at least 1; a first, unmeasured one warms up and compares the vectors.
        limit: Read only the first documents.

    Raises:
        InputError: On a malformed corpus, or one without a text to embed.
        ConfigError: If the model is no BERT with mean pooling, whose operations alone are counted here.
        EngineError: If a vector differs from the peer's by `MAX_DIFFERENCE` or more.
    """
    import torch

    texts = _texts_by_kind(corpus, config, limit)
    if not texts:
        raise InputError(f"{corpus}: there is nothing to embed")
    settings = config.embed.encoder.model_copy(update={"device": "cpu"})
    encoder = open_encoder(settings)
    if not isinstance(encoder, BertEncoder):
        raise ConfigError(
            f"embed.encoder.model={settings.model!r} is no BERT with mean pooling: its operations are not counted"
        )
    peer = load_model(settings, "cpu")
    shape = peer[0].auto_model.config
    model = _Model(shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers)
    load_before = os.getloadavg()[0]
    num_threads = torch.get_num_threads()
    kinds = {}
    for kind, members in texts.items():
        kinds[kind] = _bench_kind(members, encoder, peer, model, sorted({1, num_threads}), repeats)
    return {
        "encoder": encoder.identity,
        "threads": num_threads,
        "cpu": cpu_model(),
        "torch": str(torch.__version__),
        "load": [load_before, os.getloadavg()[0]],
        "repeats": repeats,
        "peer": "SentenceTransformer.encode(batch_size=32, normalize_embeddings=True)",
        "memory_gb_per_s": _memory_rate(),
        "kinds": kinds,
    }


def _texts_by_kind(corpus: Path, config: Config, limit: int | None) -> dict[str, list[str]]:
    """Return what stage 05 would embed, by kind, in the order of the items' ids."""
    source = read_corpus(corpus, config.ingest, limit)
    tables = {
        "documents": source.documents,
        "recorded_chunks": source.recorded_chunks,
        "recorded_extraction": source.recorded_extraction,
    }
    extract = config.extract
    if "llm" in extract.methods:
        raise ConfigError("bench index measures embedding; extract.methods may not hold llm here")
    if source.recorded_extraction.num_rows:
        extract = extract.model_copy(update={"methods": ("recorded", "mentions")})
    tables |= chunked_here(tables, config)
    tables |= run_here(s04_extract.STAGE, extract, tables)
    items: dict[str, list[tuple[str, str]]] = {}
    for kind, item_id, text in embedded_items(tables, config.embed):
        items.setdefault(kind, []).append((item_id, text))
    return {kind: [text for _, text in sorted(members)] for kind, members in items.items()}


@dataclass(frozen=True)
class _Model:
    """The sizes that decide a BERT's operations: hidden, intermediate, layers."""

    hidden: int
    wide: int
    layers: int

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of a layer's products: QKV, attention output, up, down."""
        hidden, wide = self.hidden, self.wide
        return ((hidden, 3 * hidden), (hidden, hidden), (hidden, wide), (wide, hidden))

    @property
    def num_weights(self) -> int:
        """Weights of all linear layers."""
        return self.layers * sum(inner * outer for inner, outer in self.products)

    def gflop(self, lengths: np.ndarray) -> float:
        """Operations of texts of these lengths in tokens, in 10^9."""
        attention = 4.0 * self.layers * self.hidden * float((lengths.astype(np.float64) ** 2).sum())
        return (2.0 * self.num_weights * float(lengths.sum()) + attention) / 1e9


@dataclass(frozen=True)
class _Seconds:
    """Wall seconds, and CPU seconds of the process."""

    wall: float
    cpu: float


def _bench_kind(
    texts: list[str], encoder: Encoder, peer: Any, model: _Model, threads: list[int], repeats: int
) -> dict[str, Any]:
    """Return the figures of one kind of text."""
    distinct = list(dict.fromkeys(texts))
    sample, every = _sample(distinct, peer)
    plain = partial(peer.encode, sample, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
    found = encoder.encode(sample)
    difference = float(np.abs(np.asarray(plain()) - found.vectors).max())
    if not difference < MAX_DIFFERENCE:
        raise EngineError(f"vectors differ from sentence-transformers by {difference}")
    lengths = found.num_tokens - found.cut_tokens
    gflop = model.gflop(lengths)
    by_threads = {}
    for count in threads:
        with _torch_threads(count):
            ours = partial(encoder.encode, sample)
            runs = [(_product_rate(model), _timed(ours), _timed(plain)) for _ in range(repeats)]
        by_threads[str(count)] = _shares(gflop, runs)
    return {
        "texts": len(texts),
        "distinct": len(distinct),
        "sample_every": every,
        "sample_texts": len(sample),
        "sample_tokens": int(lengths.sum()),
        "cut_texts": int((found.cut_tokens > 0).sum()),
        "max_abs_difference": difference,
        "floor": {"gflop": gflop, "bytes": 4 * (model.num_weights + model.hidden * int(lengths.sum() + len(sample)))},
        "by_threads": by_threads,
    }


def _sample(distinct: list[str], peer: Any) -> tuple[list[str], int]:
    """Return every k-th text, so that the mix of lengths is kept, and k: about `TOKEN_BUDGET` tokens."""
    some = distinct[:: max(1, len(distinct) // 500)]
    ids = peer.tokenizer(some, truncation=True, max_length=peer.max_seq_length)["input_ids"]
    num_tokens = sum(len(row) for row in ids) * len(distinct) / len(some)
    every = max(1, round(num_tokens / TOKEN_BUDGET))
    return distinct[::every], every


def _shares(gflop: float, runs: list[tuple[_Seconds, _Seconds, _Seconds]]) -> dict[str, float]:
    """Return medians over the repetitions of (product per GFLOP, ours, the peer's)."""
    return {
        "seconds": median(ours.wall for _, ours, _ in runs),
        "gflop_per_s": median(gflop / ours.wall for _, ours, _ in runs),
        "product_gflop_per_s": median(1 / product.wall for product, _, _ in runs),
        "share": median(gflop * product.wall / ours.wall for product, ours, _ in runs),
        "share_by_cpu_seconds": median(gflop * product.cpu / ours.cpu for product, ours, _ in runs),
        "peer_gflop_per_s": median(gflop / peer.wall for _, _, peer in runs),
        "peer_share": median(gflop * product.wall / peer.wall for product, _, peer in runs),
        "peer_share_by_cpu_seconds": median(gflop * product.cpu / peer.cpu for product, _, peer in runs),
        "ratio_to_peer": median(peer.wall / ours.wall for _, ours, peer in runs),
    }


def _product_rate(model: _Model) -> _Seconds:
    """Return the seconds of one GFLOP of a layer's products: the best of torch's own threads and one product per core."""
    import torch

    count = torch.get_num_threads()
    ways = [_product_seconds(model, rows, 1) for rows in _PRODUCT_ROWS]
    if count > 1:
        ways.append(_product_seconds(model, _PRODUCT_ROWS[0], count))
    return min(ways, key=lambda seconds: seconds.wall)


def _product_seconds(model: _Model, rows: int, callers: int) -> _Seconds:
    """Return the seconds of one GFLOP of a layer's products, each shape weighing by the time it takes.

    Several callers run at once, each on one thread, as the encoder's tiles do; one caller uses torch's own threads.
    """
    import torch

    random = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    steps = [(random(rows, inner), random(inner, outer)) for inner, outer in model.products]

    def layers(rounds: int) -> None:
        outs = [torch.empty(rows, right.shape[1]) for _, right in steps]
        for _ in range(rounds):
            for (left, right), out in zip(steps, outs, strict=True):
                torch.mm(left, right, out=out)

    layers(1)
    rounds = max(3, int(_PRODUCT_SECONDS / _timed(partial(layers, 1)).wall / callers))
    before = torch.get_num_threads()
    try:
        if callers > 1:
            with ThreadPoolExecutor(callers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                spent = _timed(lambda: list(pool.map(layers, [rounds] * callers)))
        else:
            spent = _timed(partial(layers, rounds))
    finally:
        torch.set_num_threads(before)
    gflop = 2e-9 * rows * rounds * callers * model.num_weights / model.layers
    return _Seconds(spent.wall / gflop, spent.cpu / gflop)


def _timed(work: Callable[[], object]) -> _Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return _Seconds(time.perf_counter() - wall, time.process_time() - cpu)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _memory_rate() -> float:
    """Return GB read and written per second by copying 128 MiB, the best of five."""
    import torch

    source, target = torch.ones(_COPY_FLOATS), torch.empty(_COPY_FLOATS)
    return 8e-9 * _COPY_FLOATS / min(_timed(lambda: target.copy_(source)).wall for _ in range(5))
