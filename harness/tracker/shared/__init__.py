"""Code shared by the server and its clients: keys, ids, links, blocks of rows, requests and errors."""
