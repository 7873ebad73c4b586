"""Code that the tracker's server and its clients share: keys, ids, links, blocks of rows, requests and
errors."""
