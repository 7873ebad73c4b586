"""Users' pod templates: validate fields, merge files into them, and check the objects to which they refer."""
