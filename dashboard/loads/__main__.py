"""`python -m dashboard.loads`: reads a plan in JSON from its input, and prints a line of JSON for each window.

If its reader ends, the program ends at the end of the window, because it cannot print the line.
"""

import os
import sys

from dashboard.loads.program import plan_from_json, window_to_json, windows

try:
    for window in windows(plan_from_json(sys.stdin.read())):
        print(window_to_json(window), flush=True)
except BrokenPipeError:
    os._exit(1)  # without the flush of the output, which would fail again
except OSError as error:
    sys.exit(f"the server cannot be reached: {error}")
except ValueError as error:
    sys.exit(str(error))
