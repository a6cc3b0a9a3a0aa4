"""Types at a shell on its own terminal, and waits for each answer before the next key."""

import os
import pty
import select
import sys
import time

RINGFENCE, BACKEND = sys.argv[1:]
DEADLINE = time.monotonic() + 60


class Terminal:
    def __init__(self, words):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execvp(words[0], words)
        self.seen = ""

    def comes(self, text, deadline):
        """Says whether `text` comes in time, and passes over what comes before it."""
        while text not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                return False
            try:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
            except OSError:
                sys.exit(f"the terminal closed before {text!r} came, after:\n{self.seen}")
        self.seen = self.seen.split(text, 1)[1]
        return True

    def wait_for(self, text):
        if not self.comes(text, DEADLINE):
            sys.exit(f"waited in vain for {text!r} after:\n{self.seen}")

    def until_stopped(self, prompt):
        """Asks the shell for its jobs until there is a stopped job.

        A key must not reach a job that still runs.
        """
        while time.monotonic() < DEADLINE:
            os.write(self.terminal, b"jobs\n")
            if self.comes("Stopped", time.monotonic() + 1):
                return self.wait_for(prompt)
        sys.exit(f"no job was stopped, after:\n{self.seen}")

    def type(self, keys, *answers):
        os.write(self.terminal, keys.encode())
        for answer in answers:
            self.wait_for(answer)


STOP, INTERRUPT, END = "\x1a", "\x03", "\x04"
os.environ.update(PS1="outer> ", INNER="inner> ", TERM="dumb")
shell = Terminal(["bash", "--norc", "--noprofile", "-i"])
shell.wait_for("outer> ")
run = f'{RINGFENCE} run --backend {BACKEND} --env PS1="$INNER"'

# Each command says when it runs, in words that its own command line does not hold.
reader = f"{run} -- sh -c 'echo ready$((6*7)); exec sed -u y/e/3/'"
sleeper = f"{run} -- sh -c 'echo ready$((6*7)); exec sleep 1000'"

# A reader keeps the terminal through a stop, and through the background.
shell.type(f"{reader}\n", "ready42\r\n")
shell.type("hello\n", "h3llo\r\n")
shell.type(STOP, "Stopped", "outer> ")
shell.until_stopped("outer> ")
shell.type("fg\n", "y/e/3/'\r\n")
shell.type("one more\n", "on3 mor3\r\n")
shell.type(STOP, "Stopped", "outer> ")
shell.until_stopped("outer> ")
shell.type("bg\n", "&\r\n")
shell.until_stopped("outer> ")
shell.type("fg\n", "y/e/3/'\r\n")
shell.type("the end\n", "th3 3nd\r\n")
shell.type(END, "outer> ")
shell.type("echo code=$?\n", "code=0\r\n")

# The keys of a terminal are the command's.
shell.type(f"{sleeper}\n", "ready42\r\n")
shell.type(INTERRUPT, "outer> ")
shell.type("echo code=$?\n", "code=130\r\n")

# A shell inside has job control of its own, and its exit code comes out.
shell.type(f"{run} -- bash --norc --noprofile -i\n", "inner> ")
shell.type("sed -u y/e/3/\n", "\n")
shell.type("hello\n", "h3llo\r\n")
shell.type(STOP, "Stopped", "inner> ")
shell.until_stopped("inner> ")
shell.type("fg\n", "y/e/3/\r\n")
shell.type("one more\n", "on3 mor3\r\n")
shell.type(INTERRUPT, "inner> ")
shell.type("test -t 0 && tty | wc -l\n", "1\r\n")
shell.type("exit 7\n", "outer> ")
shell.type("echo code=$?\n", "code=7\r\n")
