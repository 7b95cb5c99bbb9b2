"""Ray job: run a benchmark on the cluster it is submitted to.

Submit: `ray job submit -- python ray_jobs/benchmark.py ARGUMENTS`, the arguments of `gpu-rag bench`.
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
