"""Judge how each rank ended and which failure came first."""
