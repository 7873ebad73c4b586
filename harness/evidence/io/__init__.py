"""Write and read a bundle, and extract the ground truth from logs."""
