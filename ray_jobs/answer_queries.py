"""Ray job: answer questions over an index on the cluster it is submitted to.

Submit: `ray job submit -- python ray_jobs/answer_queries.py ARGUMENTS`, the arguments of `gpu-rag answer`.
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    main(["answer", "--address", "auto", *sys.argv[1:]])
