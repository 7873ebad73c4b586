"""The routes, their types, and how requests are read and answered."""
