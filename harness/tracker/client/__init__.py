"""The harness's own clients: the audit of the embedded tracker, hosted Pluto, and claims of run ids."""
