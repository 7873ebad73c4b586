"""`harness torchrun`, also `kubectl torchrun`: submit jobs with a folder's code, and manage them."""
