"""Ray job: run a benchmark on the cluster it is submitted to.

    ray job submit -- python ray_jobs/benchmark.py ARGUMENTS OF `gpu-rag bench`
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
