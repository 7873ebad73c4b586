"""Write and read a bundle, and take the ground truth out of logs."""
