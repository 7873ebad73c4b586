"""A server that does nothing: it reads requests and answers them.

What the senders reach against it is the most that bench/tracker.py could measure.

    python bench/tracker_nothing.py          prints its port, and serves until it is ended
"""

from __future__ import annotations

import asyncio
import re

LENGTH = re.compile(rb"(?i)content-length: (\d+)")
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Nothing(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.came = b""

    def data_received(self, data: bytes) -> None:
        self.came += data
        while (end := self.came.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self.came, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self.came) < whole:
                return
            self.came = self.came[whole:]
            self.transport.write(ANSWER)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Nothing, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
