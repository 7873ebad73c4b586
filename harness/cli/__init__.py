"""The commands of the harness. Importing this package makes Python's garbage collector run rarely."""

import gc

# The imports of a command create half a million objects that are never freed. With Python's default threshold
# the collector scans them about a hundred times during the start, and with 100 000 still once, for 60 ms.
gc.set_threshold(400_000)
