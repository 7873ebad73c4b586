"""The folders that a launch mounts into the ranks' pods: the recorder and netcheck."""
