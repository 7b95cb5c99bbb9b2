"""Ray job: one night on the cluster it is submitted to: update, standing questions, old generations.

Submit: `ray job submit -- python ray_jobs/nightly.py ARGUMENTS`, the arguments of `gpu-rag nightly`.
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    main(["nightly", "--address", "auto", *sys.argv[1:]])
