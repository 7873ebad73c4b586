"""The recorder, which wraps the Pluto client for programs that do not record their points themselves.

`sitecustomize` installs `hooks` in every Python process of a rank's container.
"""
