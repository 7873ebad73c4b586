"""The harness's tracker clients. They read the embedded tracker and hosted Pluto, and claim run ids."""
