"""The harness's commands. Importing this package raises Python's garbage collection threshold."""

import gc

# The imports of a command create half a million objects that are never freed. During startup, the collector
# scans them about a hundred times with Python's default threshold. With a threshold of 100 000 it still scans
# them once, which takes 60 ms.
gc.set_threshold(400_000)
