"""Users' pod templates: validate their fields, merge files into them, and check the objects they refer to."""
