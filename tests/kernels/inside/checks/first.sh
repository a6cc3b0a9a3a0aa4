# The first run of a new user is isolated, and no hint leads to a run without isolation.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run $WEAKER -- sh -c 'echo hello from $(hostname); ls -a ~'
SCRIPT
expect first-run 'hello from ringfence'

in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run -- true
SCRIPT
reject no-hint-to-no-isolation 'hint: run without isolation'

in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
SANDBOX_MODE=auto ringfence run -v -- true
SCRIPT
reject sandbox-mode-auto-isolates 'backend=local'
expect sandbox-mode-auto-names-its-backend 'backend="?(native|bwrap)'
