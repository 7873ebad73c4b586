"""Sync a local folder into all of a job's pods.

Only changed files are sent. After each pod has verified the digest of the new code, all pods switch together.

pod/            modules that run in the pods: standard library only, Python 3.9 or later
pod_script      packs the modules in pod/ into a container's command or stdin
selection       selects the files to send: with git (git_files) or with ignore files (ignored)
warnings, tree  warnings before files are sent, and the files with their digests
sender          the client's side of the protocol with one pod
job_sync        syncs all of a job's pods to one generation
exec_channel    transports the protocol over a Kubernetes exec
"""
