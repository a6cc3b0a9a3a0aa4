"""Log of the data that arrived at servers.

Both networks write to one file. Each line is one piece of data that a client sent.
"""

import json
import os

MOST = 4096


class Journal:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def record(self, service, port, data):
        if isinstance(data, bytes):
            data = data.decode("latin-1")
        # What tells attempts apart is near the beginning, or at the end.
        kept = data if len(data) <= 2 * MOST else data[:MOST] + data[-MOST:]
        os.write(
            self.file,
            (json.dumps({"service": service, "port": port, "data": kept}) + "\n").encode(),
        )
