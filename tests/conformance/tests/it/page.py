"""A browser at the page of `ringfence serve`, driven with Playwright.

The first argument is the URL of the server, the second names the part to run, and the third is a
Python interpreter with the `e2b` package. Further arguments belong to the part. Screenshots are
written to the directory that RINGFENCE_TEST_SCREENSHOTS names, if it is set.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

URL, ACT, E2B_PYTHON, *REST = sys.argv[1:]
PATIENCE = 60_000
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
SCREENSHOTS = os.environ.get("RINGFENCE_TEST_SCREENSHOTS")
MARKUP = '<img src=x onerror="window.hacked=1">'
# Without keys, any will do; the package wants one of this form.
ANY = "e2b_" + "0" * 40
expect.set_options(timeout=PATIENCE)

# Counts what the browser refuses the page, from before its first line.
WATCH = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
"""
# Runs lines in a sandbox, whatever becomes of them.
RUN = """
commands = Sandbox.connect(sys.argv[1], timeout=1800).commands
for line in sys.argv[2:]:
    try:
        commands.run(line)
    except Exception:
        pass
"""
# Holds so many MiB, and works for so many seconds with rests in between.
WORK = """import time
held, end = bytearray({} << 20), time.time() + {}
while time.time() < end: sum(range(200000)); time.sleep({})"""


def sdk(code, *words, key=ANY):
    """Has the e2b package do something, and returns what it prints."""
    variables = {"E2B_API_URL": URL, "E2B_SANDBOX_URL": URL, "E2B_API_KEY": key}
    environment = {**os.environ, **variables, "NO_PROXY": "127.0.0.1,localhost"}
    command = [E2B_PYTHON, "-c", "import sys\nfrom e2b import Sandbox\n" + code, *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE / 1000
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def asked(path, method="GET", message=None, **headers):
    """Returns the answer of the server to a program: its status, its headers and its body."""
    body = None if message is None else json.dumps(message).encode()
    url = path if path.startswith("http") else URL + path
    request = urllib.request.Request(url, method=method, headers=headers, data=body)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE / 1000) as answer:
            return answer.status, answer.headers, None if message is None else json.load(answer)
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, None


def created(template="base", key=ANY, **metadata):
    wish = {"templateID": template, "timeout": 3600, "metadata": metadata}
    status, _, made = asked("/v2/sandboxes", "POST", wish, **{"X-API-KEY": key})
    assert status == 201, status
    return made["sandboxID"]


def killed(identifier, key=ANY):
    status, *_ = asked(f"/sandboxes/{identifier}", "DELETE", **{"X-API-KEY": key})
    assert status == 204, status


def state_of(identifier):
    return sdk("print(Sandbox.get_info(sys.argv[1]).state.value)", identifier)


@contextmanager
def browser(viewport=DESKTOP, scheme="dark", **more):
    """A page of a browser of its own, which the page gives nothing to complain of."""
    with sync_playwright() as playwright:
        # Root has no sandbox of Chromium's.
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, **more)
        context.set_default_timeout(PATIENCE)
        context.add_init_script(WATCH)
        page = context.new_page()
        complaints = []
        # That a request is refused the browser says, too; the page says it in words.
        page.on(
            "console",
            lambda said: (
                said.type in ("error", "warning")
                and not said.text.startswith("Failed to load resource")
                and complaints.append(said.text)
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(URL)
        yield page
        assert page.evaluate("window.refused") == [], page.evaluate("window.refused")
        assert page.evaluate("window.hacked") is None, "markup was obeyed"
        assert complaints == [], complaints
        chromium.close()


def enter(page, key=None):
    if key is None:
        expect(page.get_by_text("No API key exists yet")).to_be_visible()
        page.get_by_role("button", name="Enter").click()
    else:
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()


def look_at(page, identifier, tab="overview"):
    page.goto(f"{URL}/#/sandboxes/{identifier}/{tab}")


def picture(page, name):
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


def screen(page):
    return "\n".join(page.locator(".xterm-rows > div").all_inner_texts())


def type_line(page, line, answer):
    """Types a line into the terminal, and waits for an answer that the line does not contain."""
    expect(page.locator(".xterm-helper-textarea")).to_be_focused()
    page.keyboard.type(line + "\n")
    rows = page.locator(".xterm-rows")
    expect(rows).to_contain_text(answer)


def eventually(page, what, find):
    """Waits until `find` returns something.

    The policy of the page forbids the method of Playwright, which evaluates text in the page.
    """
    deadline = time.monotonic() + PATIENCE / 1000
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited in vain for {what}: {screen(page)}"
        page.wait_for_timeout(50)
    return found


def has_points(page):
    charts = page.locator(".chart[data-points]")
    eventually(
        page,
        "points",
        lambda: charts.count() == 2 and int(charts.first.get_attribute("data-points")) >= 3,
    )


def told_size(page, label):
    """The size that a shell tells in the terminal."""
    type_line(page, f"clear; echo {label}: $(stty size) ok", f"{label}: ")
    found = eventually(page, "a size", lambda: re.search(rf"{label}: (\d+) (\d+) ok", screen(page)))
    return tuple(int(number) for number in found.groups())


def keys():
    """A key lets in, and shows its own sandboxes alone."""
    one, other = REST
    foreign = created(key=other, name="of another")
    for path in ["", "/events"]:
        url = f"/ringfence/sandboxes/{foreign}{path}"
        statuses = [
            asked(url, **headers)[0] for headers in ({"X-API-KEY": other}, {"X-API-KEY": one}, {})
        ]
        assert statuses == [200, 404, 401], (path, statuses)
    with browser() as page:
        page.get_by_label("API key").fill("e2b_" + "f" * 40)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not belong to this server")
        enter(page, one)
        expect(page.get_by_text("No sandbox is running.")).to_be_visible()
        expect(
            page.get_by_text("python3 -c 'from e2b import Sandbox; Sandbox.create()'")
        ).to_be_visible()
        look_at(page, foreign)
        expect(page.get_by_role("alert").filter(has_text="belongs to another key")).to_be_visible()
        assert one not in page.url and page.evaluate("localStorage.length") == 0
        # It is this tab's: a reload keeps it, logging out forgets it.
        page.reload()
        expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        enter(page, other)
        expect(page.get_by_role("link", name="of another")).to_be_visible()
    killed(foreign, key=other)


def revoked():
    """A key that is no longer good leads back to the way in, with words."""
    program, home, key = REST
    with browser() as page:
        enter(page, key)
        variables = {"HOME": home, "PATH": os.environ["PATH"]}
        subprocess.run(
            [program, "keys", "revoke", "short"], env=variables, check=True, capture_output=True
        )
        expect(
            page.get_by_role("alert").filter(has_text="does not belong to this server")
        ).to_be_visible()
        expect(page.get_by_label("API key")).to_be_visible()


def life():
    """A sandbox from its start to its end, and its terminal."""
    with browser() as page:
        enter(page)
        page.get_by_role("button", name="New").click()
        page.get_by_label("Template").select_option("allowing")
        page.get_by_label("Lifetime").select_option("5 minutes")
        page.get_by_label("Name (optional)").fill("demo")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name="demo")).to_be_visible()
        expect(page.locator(".head .badge")).to_have_text("running")
        expect(page.locator(".head > .dim")).to_have_text(re.compile(r"^[45] min"))
        page.get_by_role("button", name="Extend lifetime").click()
        expect(page.locator(".head > .dim")).to_have_text(re.compile(r"^(29|30) min"))
        expect(page.locator("[data-promise=filesystem].held")).to_contain_text(
            "can be read or written"
        )
        expect(page.locator("[data-promise=egress].held")).to_be_visible()
        has_points(page)

        page.get_by_role("link", name="Terminal").click()
        type_line(page, "echo $((6 * 7))-inside-$PWD", "42-inside-/home/user")
        before = told_size(page, "before")
        page.set_viewport_size({"width": 900, "height": 600})
        rows = page.locator(".xterm-rows > div")
        eventually(page, "fewer lines", lambda: rows.count() < before[0])
        after = told_size(page, "after")
        assert after[0] == rows.count() and after[1] < before[1], (before, after)
        # It goes on behind another part of the page.
        page.get_by_role("link", name="Policy").click()
        expect(page.locator("pre.policy")).to_contain_text('allow = ["allowed.example"]')
        page.get_by_role("link", name="Terminal").click()
        type_line(page, "exit", "[exit status 0]")
        page.get_by_role("button", name="New shell").click()
        type_line(page, "echo again-$((1 + 1))", "again-2")

        page.get_by_role("button", name="Kill").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("heading", name="demo")).to_be_visible()
        page.get_by_role("button", name="Kill").click()
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        expect(page.get_by_text("No sandbox is running.")).to_be_visible()


def rest():
    """The page and other clients pause and resume a sandbox, and its processes continue."""
    identifier = created(name="sleeper")
    with browser() as page:
        enter(page)
        page.get_by_role("link", name="sleeper").click()
        state, row = (
            page.locator(".head .badge"),
            page.get_by_role("link", name="sleeper").locator(".badge"),
        )
        expect(state).to_have_text("running")
        page.get_by_role("link", name="Terminal").click()
        type_line(page, "kept=$((40 + 2)); echo is-$((1 + 1))", "is-2")
        longer = page.get_by_role("button", name="Extend lifetime")
        expect(longer).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(state).to_have_text("paused")
        expect(row).to_have_text("paused")
        expect(page.locator(".head > .dim")).to_have_text("lifetime paused")
        expect(page.get_by_role("status").filter(has_text="Resume the sandbox")).to_be_visible()
        expect(longer).to_be_hidden()
        assert state_of(identifier) == "paused"
        # What cannot be done meanwhile is said in words.
        page.get_by_role("link", name="Files").click()
        expect(page.locator(".files .trouble")).to_contain_text("not found")
        page.get_by_role("button", name="Resume").click()
        expect(state).to_have_text("running")
        expect(page.get_by_role("status").filter(has_text="Resume the sandbox")).to_be_hidden()
        expect(page.locator(".head > .dim")).to_have_text(re.compile(r"^(29|30) min"))
        assert state_of(identifier) == "running"
        page.get_by_role("link", name="Terminal").click()
        type_line(page, "echo still-$kept", "still-42")
        # Others do it, too.
        sdk("Sandbox.connect(sys.argv[1]).pause()", identifier)
        expect(state).to_have_text("paused")
        sdk("Sandbox.connect(sys.argv[1])", identifier)
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        killed(identifier)


def files():
    """Files are brought, looked at, fetched and removed; hostile names are text."""
    identifier = created()
    with browser() as page, tempfile.TemporaryDirectory() as place:
        enter(page)
        look_at(page, identifier, "files")
        expect(page.get_by_text("This directory is empty.")).to_be_visible()
        note = Path(place, "note.txt")
        note.write_text("fünf\n<b>six</b>\n")
        page.locator("input[type=file]").set_input_files(note)
        page.get_by_role("button", name="note.txt").click()
        expect(page.locator(".preview pre")).to_have_text("fünf\n<b>six</b>\n", use_inner_text=True)
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        assert download.value.suggested_filename == "note.txt"
        assert Path(download.value.path()).read_bytes() == note.read_bytes()
        found = sdk("print(Sandbox.connect(sys.argv[1]).files.read('note.txt'))", identifier)
        assert found == note.read_text().strip(), found
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("This directory is empty.")).to_be_visible()

        files = "files = Sandbox.connect(sys.argv[1]).files\n"
        sdk(
            files + "files.write(sys.argv[2], sys.argv[2])\nfiles.make_dir('deep/er')",
            identifier,
            MARKUP,
        )
        page.get_by_role("button", name="Reload").click()
        page.get_by_role("button", name=MARKUP).click()
        expect(page.locator(".preview pre")).to_have_text(MARKUP)
        page.get_by_role("button", name="deep/").click()
        page.get_by_role("button", name="er/").click()
        expect(page.get_by_text("This directory is empty.")).to_be_visible()
        page.get_by_role("navigation", name="Directory").get_by_role("button", name="user").click()
        expect(page.get_by_role("button", name="deep/")).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        # What a guest says is no page of the server's, whatever it says.
        url = sdk(
            "print(Sandbox.connect(sys.argv[1]).download_url(sys.argv[2]))", identifier, MARKUP
        )
        status, headers, _ = asked(url)
        assert status == 200 and headers["Content-Security-Policy"].startswith("sandbox"), headers
        assert headers["X-Content-Type-Options"] == "nosniff", headers
        killed(identifier)


def activity():
    """What others run and what is denied shows without a reload, and so does the end."""
    identifier = created("allowing", name=MARKUP, tag=MARKUP)
    with browser() as page:
        enter(page)
        page.get_by_role("link", name=MARKUP).click()
        expect(page.get_by_role("heading", name=MARKUP)).to_be_visible()
        events = page.locator(".events li")
        expect(page.get_by_text("Nothing was run or denied")).to_be_visible()
        sdk(RUN, identifier, "echo from the package")
        expect(events.filter(has_text="echo from the package").locator(".badge")).to_have_text("ok")
        sdk(RUN, identifier, f"echo '{MARKUP}'; exit 3")
        expect(events.filter(has_text=MARKUP).locator(".badge")).to_have_text("exit status 3")
        sdk(RUN, identifier, "curl -sS --max-time 20 http://denied.example/")
        denial = page.locator(".events li[data-kind=denial]")
        expect(denial).to_contain_text("denied.example")
        expect(denial).to_contain_text('allow = ["denied.example')
        sdk(
            "from e2b_code_interpreter import Sandbox\n"
            "Sandbox.connect(sys.argv[1]).run_code('1 / 0')",
            identifier,
        )
        expect(events.filter(has_text="1 / 0").locator(".badge")).to_have_text("ZeroDivisionError")
        assert page.locator("img[src=x]").count() == 0
        killed(identifier)
        expect(page.get_by_role("alert").filter(has_text="This sandbox has ended")).to_be_visible()
        expect(page.locator(".head .badge")).to_have_text("ended")


def started(identifier, process, **more):
    """Has a command started in the words of a client's own, and waits for its end."""
    _, _, info = asked(f"/sandboxes/{identifier}", message={}, **{"X-API-KEY": ANY})
    message = json.dumps({"process": process, "stdin": False, **more}).encode()
    headers = {
        "E2b-Sandbox-Id": identifier,
        "X-Access-Token": info["envdAccessToken"],
        "Content-Type": "application/connect+json",
        "Connect-Protocol-Version": "1",
    }
    body = b"\0" + len(message).to_bytes(4, "big") + message
    request = urllib.request.Request(
        URL + "/process.Process/Start", method="POST", headers=headers, data=body
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE / 1000) as answer:
        return answer.read()


OWN_SHELL = "command -v bash >/dev/null && exec bash -i -l; exec sh -i"
# What is started, and what the page must show of it, whatever it looks like.
DECEITS = [
    # Arguments after the line that a shell runs.
    (
        {"cmd": "/bin/bash", "args": ["-c", "touch deed-1", "-c", "echo harmless"]},
        ["touch deed-1", "echo harmless"],
    ),
    ({"cmd": "/bin/sh", "args": ["-c", "touch deed-2", OWN_SHELL]}, ["touch deed-2"]),
    ({"cmd": "/bin/bash", "args": ["-l", "-c", "touch deed-3", "x", "-c", "ls"]}, ["touch deed-3"]),
    # Not the shell that it is called.
    ({"cmd": "/home/user/bash", "args": ["-c", "echo deed-4"]}, ["/home/user/bash", "deed-4"]),
    ({"cmd": "sh", "args": ["-c", "echo deed-5"]}, ["sh -c 'echo deed-5'"]),
    # The terminal of no page.
    ({"cmd": "/bin/sh", "args": ["-c", OWN_SHELL]}, [OWN_SHELL]),
    ({"cmd": "/bin/echo", "args": ["deed-6", OWN_SHELL]}, ["/bin/echo deed-6"]),
    # Pushed out of sight.
    (
        {"cmd": "/bin/sh", "args": ["-c", "echo six" + " " * 700 + "; touch deed-7"]},
        ["␣×700", "touch deed-7"],
    ),
    (
        {"cmd": "/bin/sh", "args": ["-c", "echo seven" + "\n" * 90 + "touch deed-8"]},
        ["⏎×90", "touch deed-8"],
    ),
    (
        {"cmd": "/bin/sh", "args": ["-c", "echo nine; " + "true; " * 200 + "touch deed-9"]},
        ["more characters", "not kept"],
    ),
    (
        {"cmd": "/bin/sh", "args": ["-c", "echo deed-10;" + "true;" * 100 + "touch deed-end"]},
        ["characters …", "touch deed-end"],
    ),
    (
        {"cmd": "/bin/sh", "args": ["-c", "echo deed-11\u2800\u3164" + "\u00a0" * 3]},
        ["U+2800", "U+3164", "U+00A0"],
    ),
    # Written over, turned around, and not seen.
    ({"cmd": "/bin/sh", "args": ["-c", "touch deed-12 #\rls"]}, ["touch deed-12", "U+000D"]),
    (
        {"cmd": "/bin/sh", "args": ["-c", "touch deed-13 \u202e sl \u2066 \u200b"]},
        ["U+202E", "U+2066", "U+200B"],
    ),
    ({"cmd": "/bin/echo", "args": ["deed-14 ⟨… 9 characters …⟩"]}, ["U+27E8"]),
    # Other programs by the same words.
    (
        {"cmd": "ls", "args": ["deed-15"], "envs": {"PATH": "/home/user", "LD_PRELOAD": "x"}},
        ["with LD_PRELOAD, PATH set"],
    ),
    ({"cmd": "./deed-16", "cwd": "/tmp"}, ["in /tmp"]),
    ({"cmd": "/bin/true", "args": ["x" * (70 << 10)]}, ["(too long to be shown)"]),
]


def deceived():
    """What is shown is what was started, however it is dressed up."""
    identifier = created("allowing", name="deceit")
    with browser() as page:
        enter(page)
        page.get_by_role("link", name="deceit").click()
        events = page.locator(".events li")
        for number, (process, shown) in enumerate(DECEITS):
            started(identifier, process)
            expect(events).to_have_count(number + 1)
            for text in shown:
                expect(events.first).to_contain_text(text)
            assert events.first.locator("code").first.is_visible()
        # What is long can be seen whole.
        folded = events.filter(has_text="deed-10")
        folded.get_by_role("button", name="Show all").click()
        expect(folded).to_contain_text("true;" * 100)
        # Letters that are written from right to left do not turn the rest around.
        direction = events.first.locator("code").first.evaluate(
            "node => getComputedStyle(node).unicodeBidi"
        )
        assert direction == "bidi-override", direction
        expect(page.get_by_text("The sandbox itself reports how a command ended")).to_be_visible()
        killed(identifier)


def phone():
    """On a phone there is one column, nothing to scroll sideways, and a way back."""
    identifier = created("allowing", **{"name": "pocket", "long" * 30: "word" * 60})
    sdk(
        "name = 'a-file-with-a-rather-long-name-' + 'x' * 80\n"
        "Sandbox.connect(sys.argv[1]).files.write(name, 'text')",
        identifier,
    )
    with browser(PHONE, "light", has_touch=True, is_mobile=True, device_scale_factor=2) as page:

        def fits():
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"], f"{page.url} is {width} wide"

        fits()
        enter(page)
        link = page.get_by_role("link", name="pocket")
        expect(link).to_be_visible()
        expect(page.locator(".detail")).to_be_hidden()
        fits()
        link.tap()
        expect(page.locator(".list")).to_be_hidden()
        expect(page.locator("[data-promise=filesystem]")).to_be_visible()
        fits()
        for tab, seen in [
            ("Terminal", ".xterm-rows"),
            ("Files", ".files tbody button"),
            ("Policy", "pre.policy"),
        ]:
            page.get_by_role("link", name=tab).tap()
            expect(page.locator(seen).first).to_be_visible()
            fits()
        page.get_by_role("link", name="‹ Sandboxes").tap()
        expect(link).to_be_visible()
    killed(identifier)


def keyboard():
    """All is reached with the keyboard alone."""
    with browser() as page:
        expect(page.get_by_role("button", name="Enter")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
        page.get_by_role("button", name="New").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Enter")  # where it was
        expect(page.get_by_label("Template")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("typed")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="typed")).to_be_visible()
        page.get_by_role("button", name="Kill").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_text("No sandbox is running.")).to_be_visible()


def drawn():
    """Several sandboxes in dark mode, in light mode and on a phone, with screenshots on request."""
    names = ["build and test", "data analysis", "nightly agent"]
    made = [created("allowing", name=name, user="ada") for name in names]
    loads = [(40, 7, 0.02), (90, 8, 0.002), (140, 6, 0.03)] if SCREENSHOTS else [(40, 1, 0.02)]
    with browser() as page:
        enter(page)
        page.get_by_role("link", name=names[1]).click()
        expect(page.locator("[data-promise=filesystem]")).to_be_visible()
        sdk(RUN, made[1], "git clone https://git.example/project", "ls -la")
        for load in loads:
            sdk(RUN, made[1], f"python3 -c '{WORK.format(*load)}'")
        lines = [
            "curl -sS http://tracker.example/pixel",
            "printf 'a,b\\n1,2\\n' > report.csv",
            "wc -l report.csv",
        ]
        sdk(RUN, made[1], *lines)
        expect(page.locator(".events li[data-kind=denial]")).to_have_count(2)
        expect(
            page.locator(".events li", has_text="wc -l report.csv").locator(".badge")
        ).to_have_text("ok")
        picture(page, "sandbox-dark")
        page.get_by_role("link", name="Terminal").click()
        type_line(
            page, "PS1='$ '; clear; ls -l; curl -sS http://tracker.example/", '"error":"denied"'
        )
        picture(page, "terminal-dark")
    with browser(scheme="light") as page:
        enter(page)
        look_at(page, made[1])
        expect(page.locator(".events li[data-kind=denial]")).to_have_count(3)
        has_points(page)
        picture(page, "sandbox-light")
    with browser(PHONE, "dark", has_touch=True, is_mobile=True, device_scale_factor=2) as page:
        enter(page)
        expect(page.get_by_role("link", name=names[1])).to_be_visible()
        picture(page, "phone-list")
        look_at(page, made[1])
        expect(page.locator(".events li[data-kind=denial]")).to_have_count(3)
        has_points(page)
        picture(page, "phone-sandbox")
    for identifier in made:
        killed(identifier)


globals()[ACT]()
