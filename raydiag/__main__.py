"""`python -m raydiag`."""

import sys

from raydiag.cli import main

sys.exit(main())
