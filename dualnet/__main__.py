import sys

from dualnet.cli import main

sys.exit(main())
