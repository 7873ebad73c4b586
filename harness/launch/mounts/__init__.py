"""The folders that a launch mounts into its ranks' pods: the recorder and netcheck."""
