"""`python -m localcloud.demo`."""

import sys

if __name__ == "__main__":
    try:
        from localcloud.demo.command import main  # seconds of imports, during which Ctrl-C may come, too

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
