"""The commands of the harness, thin. Importing them makes Python's garbage collector rare."""

import gc

# A command imports half a million objects that stay. With Python's own threshold the collector looks through
# them some hundred times while it starts, and with 100 000 still once, for 60 ms.
gc.set_threshold(400_000)
