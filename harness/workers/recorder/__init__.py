"""Wrap the Pluto client, in order to record the points of programs that do not record points themselves.

`sitecustomize` installs `hooks` in every Python process of a rank's container.
"""
