"""A collector of OTLP over HTTP that keeps what it gets: collector.py PORT FILE

The file holds the bodies of all requests with spans, one after another. In them a trace id stands as its 16 bytes.
"""

import http.server
import sys


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            with open(sys.argv[2], "ab") as file:
                file.write(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
