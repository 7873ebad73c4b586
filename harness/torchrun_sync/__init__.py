"""Sync a local folder into all pods of a job.

Only changed files are sent. All pods switch to the new code together, and digests verify it.

pod/            modules that run in the pods: standard library only, Python 3.9 or later
bundle          packs the modules of pod/ into the command or the stdin of a container
selection       the files of a folder that are sent: by git (git_files), by ignore files (ignored)
warnings, tree  warnings before files are sent, and the files with their digests
sender          the client's side of the protocol with one pod
fleet           syncs all pods of a job to one generation
exec_channel    transports the protocol over a Kubernetes exec
"""
