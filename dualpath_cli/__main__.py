"""``python -m dualpath_cli`` is ``dualpath``."""

import sys

from dualpath_cli.cli import main

sys.exit(main())
