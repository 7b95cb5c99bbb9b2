"""Numba and Triton kernels of gpu_rag, each beside its plain torch reference.

Knows arrays only: no pyarrow, no gpu_rag. Imports torch and numpy; numba and triton at first use.
"""
