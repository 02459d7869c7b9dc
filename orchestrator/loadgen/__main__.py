"""`python -m orchestrator.loadgen`; the zipapp enters through `main` as well."""

from __future__ import annotations

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
