"""Pod templates of users: check their fields, merge files into them, find what they refer to."""
