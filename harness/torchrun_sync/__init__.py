"""The current directory in N pods: only what changed, in one step, and confirmed by each pod's own hash.

pod/       runs in the pods: standard library, Python 3.9 or later, brought by the exec that starts it
bundle     the modules of pod/ as one text
ignored, tree   what travels: a folder without what it ignores, as entries with digests
sender     one pod's side of the conversation
fleet      all pods of a job, one generation
exec_channel    the conversation's two streams, by Kubernetes exec
"""
