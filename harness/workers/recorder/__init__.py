"""Record the points of programs that do not record them themselves, by wrapping the Pluto client.

`sitecustomize` installs `hooks` in every Python process of a rank's container.
"""
