"""Ray job: answer questions over an index and evaluate the run, in one submission.

Submit: `ray job submit -- python ray_jobs/evaluate.py QUESTIONS --index INDEX --out RUN`, and what else `gpu-rag answer` takes.
"""

import sys

from gpu_rag.cli import main

if __name__ == "__main__":
    questions, *options = sys.argv[1:]
    run = options[options.index("--out") + 1]
    try:
        main(["answer", questions, "--address", "auto", *options])
    except SystemExit as done:
        if done.code:
            raise
    main(["evaluate", run, "--questions", questions])
