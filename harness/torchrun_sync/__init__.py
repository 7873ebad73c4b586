"""Sync a local folder into all pods of a job: only changed files, switched in one step, verified by digests.

pod/            the programs that run in the pods: standard library only, Python 3.9 or later
bundle          packs the modules of pod/ into the command or the stdin of a container
ignored, tree   a folder without its ignored files, as entries with digests
sender          the protocol with one pod, on the client's side
fleet           the sync of all pods of a job to one generation
exec_channel    the protocol's two streams, over a Kubernetes exec
"""
