"""Judge a training: its checkpoints, its data order, and the storage to which its run is uploaded."""
