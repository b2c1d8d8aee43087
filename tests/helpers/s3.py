"""A real S3 protocol server on loopback that counts its requests, and refuses those that a test wants refused."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

THROTTLED = "503 Slow Down", "SlowDown", "Please reduce your request rate."
DENIED = "403 Forbidden", "AccessDenied", "Access Denied"
UNKNOWN_KEY = "403 Forbidden", "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist."
Answer = tuple[str, str, str]
"""Status, code and message of an error."""


class S3:
    """The server; `refuse` returns the error for a method and path, or None."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.refuse: Callable[[str, str], Answer | None] = lambda method, path: None
        self._app = DomainDispatcherApplication(create_backend_app)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
        self.server = make_server("127.0.0.1", 0, self, threaded=True)

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        refused = self.refuse(method, path)
        if refused is None:
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, code, message = refused
        start_response(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode() * (method != "HEAD")]

    def address(self, path: str, *, user: str = "") -> str:
        return f"s3://{user}{path}?scheme=http&endpoint_override=127.0.0.1:{self.server.port}"

    def make_bucket(self, name: str) -> None:
        urlopen(Request(f"http://127.0.0.1:{self.server.port}/{name}", method="PUT")).close()

    def counted(self) -> Counter[str]:
        return Counter(method for method, _ in self.requests)

    @contextmanager
    def refusing(self, answer: Answer, *methods: str, times: int | None = None) -> Iterator[list[str]]:
        """Refuse requests of these methods, the first ones or all; yield the list of what was refused."""
        refused: list[str] = []

        def refuse(method: str, path: str) -> Answer | None:
            if method in methods and (times is None or len(refused) < times):
                refused.append(path)
                return answer
            return None

        self.refuse = refuse
        try:
            yield refused
        finally:
            self.refuse = lambda method, path: None


@contextmanager
def s3_server() -> Iterator[S3]:
    s3 = S3()
    thread = threading.Thread(target=s3.server.serve_forever)
    thread.start()
    try:
        yield s3
    finally:
        s3.server.shutdown()
        thread.join()
        s3.server.server_close()
