"""The `harness torchrun` command, also available as `kubectl torchrun`: submit jobs with the code in a
folder, and manage them."""
