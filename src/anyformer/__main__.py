"""python -m anyformer"""

import sys

from anyformer.cli import main

sys.exit(main())
