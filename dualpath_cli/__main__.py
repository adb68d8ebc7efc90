"""``python -m dualpath_cli`` is ``dualpath``."""

import sys

from dualpath_cli.cli.main import main

sys.exit(main())
