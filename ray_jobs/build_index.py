"""Ray job: build an index on the cluster it is submitted to.

Submit: `ray job submit -- python ray_jobs/build_index.py ARGUMENTS`, the arguments of `gpu-rag index`.
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    main(["index", "--address", "auto", *sys.argv[1:]])
