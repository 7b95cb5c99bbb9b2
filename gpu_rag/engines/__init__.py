"""Engines: the only importers of ray, vllm, faiss, bm25s, leidenalg, transformers and sentence-transformers."""
