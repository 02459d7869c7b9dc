"""`python -m tests.bench`: the load generator's bench."""

import sys

from tests.bench.loadgen_bench import main

if __name__ == "__main__":
    sys.exit(main())
