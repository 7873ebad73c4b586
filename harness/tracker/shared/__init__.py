"""What the server and its clients share: keys, ids, links, blocks of rows, requests and their refusals."""
