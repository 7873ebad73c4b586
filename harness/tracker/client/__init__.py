"""The harness's clients: the audit of the embedded tracker, reads of hosted Pluto, and claims of run ids."""
