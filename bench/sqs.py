"""`python -m bench.sqs PORT`: accepts SQS messages after a moment, as AWS does, and with little of this machine's CPU.

moto would do it in the process that also serves DynamoDB, and delay the turns.
"""

import asyncio
import sys
from contextlib import suppress

LATENCY_SECONDS = 0.005
_ACCEPTED = b'{"MessageId": "m", "MD5OfMessageBody": ""}'


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_body_length(head))
            await asyncio.sleep(LATENCY_SECONDS)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_ACCEPTED), _ACCEPTED))
    writer.close()


def _body_length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
