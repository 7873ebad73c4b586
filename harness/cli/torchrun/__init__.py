"""`harness torchrun`, also `kubectl torchrun`: submit jobs with the code of a folder, and manage them."""
