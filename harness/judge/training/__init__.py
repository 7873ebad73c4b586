"""Judge a training: its checkpoints, its order of data, and the storage that its run is sent to."""
