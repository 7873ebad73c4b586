"""The harness's clients, which read the embedded tracker and hosted Pluto, and claim run ids."""
