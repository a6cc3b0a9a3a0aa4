# A file behind standard input is neither in the workspace nor named by the policy: the command may
# read it, and may not change it.
cat > /home/dev/w/streams.py <<'PYTHON'
import os

def attempt(name, call):
    try:
        call()
        print(name, "succeeded")
    except OSError as error:
        print(name, error.strerror)

attempt("truncate", lambda: os.truncate("/proc/self/fd/0", 3))
attempt("write", lambda: os.write(os.open("/proc/self/fd/0", os.O_RDWR), b"x"))
attempt("chmod", lambda: os.chmod(0, 0o666))
PYTHON
# Without a sandbox every change succeeds, or the attempts prove nothing.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
echo whole > ~/outside
ringfence run --backend local -- python3 streams.py < ~/outside
SCRIPT
for change in truncate write chmod; do
  expect "streams-local-$change" "^$change succeeded"
done
for BACKEND in native bwrap; do
  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
echo whole > ~/outside
ringfence run $WEAKER --backend "$BACKEND" -- python3 streams.py < ~/outside
cat ~/outside
ringfence run $WEAKER --json --backend "$BACKEND" -- true | grep -o '"filesystem":"[^"]*'
SCRIPT
  if grep -q "backend .$BACKEND. does not work here" "$SEEN"; then
    skip "streams-$BACKEND" 'the backend does not work here, and says so'
    continue
  fi
  if grep -q '"filesystem":"weaker' "$SEEN"; then
    skip "streams-$BACKEND" 'the backend does not claim to hold the file system here'
    continue
  fi
  expect "streams-$BACKEND-runs" '^truncate '
  # Nothing was attempted where nothing ran: that proves nothing.
  grep -q '^truncate ' "$SEEN" || continue
  for change in truncate write chmod; do
    reject "streams-$BACKEND-$change" "^$change succeeded"
  done
done
