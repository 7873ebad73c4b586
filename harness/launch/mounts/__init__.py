"""What a launch mounts into the pods of its ranks: the recorder, netcheck, changed scripts."""
