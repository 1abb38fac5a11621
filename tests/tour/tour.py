#!/usr/bin/env python3
"""Takes the README's pictures: runs the tour with a real conductor, in real terminals.

  tour.py [--conductor FILE] [--out DIR] [NAME…]

Everything happens in a place of its own: a user `ada` on a host `team`, with an empty home, made
of name spaces, so that a picture shows nothing of the machine it was taken on. Needs Linux with
user name spaces, `unshare` and `mount` of util-linux 2.38, `bash`, and Python 3.11.
"""

import argparse
import codecs
import ctypes
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from scenes import SCENES
from screen import Screen, draw

PATIENCE = 60  # seconds that anything may take
HOME = Path("/home/ada")
CLONE_NEWUSER = 0x10000000  # of sched.h; Python has it from 3.12 on
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # of linux/sockios.h and linux/if.h
KERNEL = os.uname().release  # which says who has built it, so its number alone is shown
READY = "ready"  # what the shell marks each of its prompts with
PROMPT = rf"\[\e]{READY}\a\e[1;36m\]\w\[\e[0m\] $ "


ENV = {
    "HOME": str(HOME),
    "USER": "ada",
    "PATH": f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
}


class Terminal:
    """A shell of ada's in a terminal, and what it shows."""

    def __init__(self, title, env, columns=100, rows=60):
        self.title, self.screen = title, Screen(columns, rows)
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(HOME / "shop")
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], {**ENV, **env, "PS1": PROMPT})
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.prompts = 0
        self.ready()

    def read(self, until):
        """Reads what is shown until something holds of it."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise TimeoutError(f"{self.title} still shows:\n{self.screen.text()}")
            shown = self.decoder.decode(os.read(self.master, 65536))
            self.screen.feed(shown.replace(KERNEL, KERNEL.split("-")[0]))

    def type(self, text, enter="\r"):
        os.write(self.master, (text + enter).encode())

    def see(self, text, times=1):
        """Waits until a text stands on the screen."""
        self.read(lambda: self.screen.text().count(text) >= times)

    def ready(self):
        """Waits until the shell takes a command again."""
        self.prompts += 1
        self.read(lambda: self.screen.marks.count(READY) >= self.prompts)

    def run(self, *commands):
        """Types commands, each once the one before has ended."""
        for command in commands:
            self.type(command)
            self.ready()

    def end(self):
        os.kill(self.pid, signal.SIGHUP)
        os.close(self.master)
        os.waitpid(self.pid, 0)


class Place:
    """Where the tour is: ada's home, with a project and a service."""

    def __init__(self):
        self.service = None
        self.terminals = []

    def terminal(self, title, **env):
        self.terminals.append(Terminal(title, env))
        return self.terminals[-1]

    def quietly(self, command):
        """Runs a command that no picture shows, and gives back what it printed."""
        shell, where = ["bash", "-c", command], HOME / "shop"
        return subprocess.run(shell, env=ENV, cwd=where, check=True, stdout=subprocess.PIPE, text=True).stdout

    def serve(self, *args):
        """Starts the service, and waits until it is ready."""
        self.stop()
        log = open(HOME / "serve.log", "wb")  # noqa: SIM115, the service has it for as long as it runs
        command = ["conductor", "serve", *args]
        self.service = subprocess.Popen(command, env=ENV, cwd=HOME, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while "is ready" not in (said := (HOME / "serve.log").read_text()):
            assert self.service.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.05)

    def stop(self):
        if self.service:
            self.service.terminate()
            self.service.wait(PATIENCE)
            self.service = None

    def leave(self):
        for terminal in self.terminals:
            terminal.end()
        self.stop()


def inside(names):
    """Takes the pictures, in the place that was made for it; they leave it on stdout."""
    place = Place()
    pictures = {}
    try:
        for name, (label, scene) in SCENES.items():
            windows = scene(place)
            if name in names or not names:
                pictures[name] = draw([(t.screen, t.title, t.screen.used()) for t in windows], label)
    finally:
        place.leave()
    json.dump(pictures, sys.stdout)


def furnish(program, home):
    """Makes the place, as the root of a name space: a home, names of the host and its user, a loopback."""
    run = lambda *command: subprocess.run(command, check=True)  # noqa: E731
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tour", home)
    ada = home / "ada"
    for directory in (ada / ".local/bin", ada / "shop"):
        directory.mkdir(parents=True)
    (ada / ".local/bin/conductor").touch()
    run("mount", "--bind", program, ada / ".local/bin/conductor")
    (home / "passwd").write_text(f"ada:x:1000:1000:Ada:{HOME}:/bin/bash\n")
    run("mount", "--bind", home / "passwd", "/etc/passwd")
    run("mount", "--rbind", home, "/home")
    run("hostname", "team")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def become_ada():
    """Leaves the root of the name space behind. In this process, as its program may lie beneath the old /home."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "cannot make a name space for the user")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text("1000 0 1")
    Path("/proc/self/uid_map").write_text("1000 0 1")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--conductor", type=Path, default=root / "target/debug/conductor", metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures", metavar="DIR")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *SCENES], help=", ".join(SCENES))
    args = parser.parse_args()
    if args.inside:
        furnish(args.conductor, args.home)
        become_ada()
        return inside(args.names)
    if not args.conductor.exists():
        sys.exit(f"{args.conductor} is not there; `cargo build` makes it, --conductor names another")
    with tempfile.TemporaryDirectory() as home:
        again = ["--inside", "--conductor", args.conductor.resolve(), "--home", home, *args.names]
        unshare = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "--net", sys.executable, "-B", __file__]
        done = subprocess.run([*unshare, *again], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit("the tour broke off; see above")
    args.out.mkdir(exist_ok=True)
    for name, picture in json.loads(done.stdout).items():
        (args.out / f"{name}.svg").write_text(picture)
        print(f"{args.out / name}.svg  {len(picture.encode()):,} bytes")


if __name__ == "__main__":
    main()
