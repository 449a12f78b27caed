"""`python -m localcloud.demo`."""

import sys

if __name__ == "__main__":
    try:
        from localcloud.demo.options import main  # its seconds of imports may be interrupted, too

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
