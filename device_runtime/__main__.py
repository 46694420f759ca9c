"""`python -m device_runtime` is the command `device-runtime`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
