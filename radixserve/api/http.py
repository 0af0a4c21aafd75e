"""HTTP/1.1 as uvicorn reads it by httptools, with an end to what is not a body.

The parser is written in C and takes heads, trailers and chunk extensions of any length.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10


class Http(HttpToolsProtocol):
    """One connection. A head of more than MAX_HEAD_BYTES, about, is refused and ends it."""

    _head_bytes = 0  # read since the last piece of a body, or the end of a head or a request

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.logger.warning("a request whose head has no end was refused")
            self.send_400_response(f"The head of a request has at most {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()
