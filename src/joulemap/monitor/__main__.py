"""``python -m joulemap.monitor``: the monitor process, as the recorder starts it."""

import sys

from joulemap.monitor.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
