"""A TCP proxy on loopback whose connections can be cut."""

import contextlib
import socket
import threading


class Proxy:
    """Passes everything on to a port of this host, until `cut`."""

    def __init__(self, port):
        self.to = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open = []
        self.connections = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to)
                with self.lock:
                    self.open += [client, server]
                    self.connections += 1
                for ways in [(client, server), (server, client)]:
                    threading.Thread(target=self.copy, args=ways, daemon=True).start()

    def copy(self, come, go):
        with contextlib.suppress(OSError):
            while data := come.recv(1 << 16):
                go.sendall(data)
        for end in (come, go):
            self.end(end)

    def cut(self):
        """Ends what is connected now; whoever comes again gets through."""
        with self.lock:
            cut, self.open = self.open, []
        for end in cut:
            self.end(end)

    def end(self, end):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def close(self):
        self.listener.close()
        self.cut()
