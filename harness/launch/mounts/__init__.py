"""The folders that a launch mounts into the pods of its ranks: the recorder and netcheck."""
