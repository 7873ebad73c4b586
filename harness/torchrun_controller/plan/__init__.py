"""How the GPUs of a job are divided over nodes. Pure."""
