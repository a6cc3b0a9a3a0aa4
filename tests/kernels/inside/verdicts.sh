# Verdicts on what a script printed, which is in the file $SEEN. Each prints one line: `ok NAME`,
# `not ok NAME: what was seen` or `skip NAME: reason`.

# Prints the end of what was seen on one line.
quote_seen() {
  tail -n 12 "$SEEN" | tr '\n' '|' | cut -c1-900
}

# expect NAME PATTERN: some line must match.
expect() {
  if grep -qE -- "$2" "$SEEN"; then
    echo "ok $1"
  else
    echo "not ok $1: wanted /$2/, saw: $(quote_seen)"
  fi
}

# reject NAME PATTERN: no line may match, and the script must have come to its end.
reject() {
  if grep -qE -- "$2" "$SEEN"; then
    echo "not ok $1: did not want /$2/, saw: $(quote_seen)"
  elif ! grep -q '^status ' "$SEEN"; then
    echo "not ok $1: the script did not end, saw: $(quote_seen)"
  else
    echo "ok $1"
  fi
}

# skip NAME REASON
skip() {
  echo "skip $1: $2"
}

# Prints a script that goes beyond each limit once, with the flags $WEAKER in the directory
# $WORKSPACE.
print_limits_script() {
  cat <<'SCRIPT'
cd "${WORKSPACE:-$HOME/w}"
cat > fork.py <<'PYTHON'
import os, time
children = 0
for _ in range(100):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        time.sleep(9)
        os._exit(0)
    children += 1
print("forked", children)
PYTHON
cat > spin.py <<'PYTHON'
import time
start = time.time()
used = time.process_time()
while time.time() - start < 4:
    pass
print("share %.1f" % ((time.process_time() - used) / (time.time() - start)))
PYTHON
run="$PREFIX ringfence run $WEAKER"
$run --json --memory 64M -- python3 -c 'x = bytearray(300 << 20)' | grep -o '"oom_killed":[a-z]*'
$run --processes 20 -- python3 fork.py
$run --cpus 0.5 -- python3 spin.py
find /sys/fs/cgroup -name 'ringfence-[0-9]*' 2>/dev/null
SCRIPT
}

# expect_limits NAME: each limit held, and no cgroup of a run is left.
expect_limits() {
  expect "$1-memory" '"oom_killed":true'
  expect "$1-processes" '^forked 1[0-9]$'
  expect "$1-cpus" '^share 0\.[3456]'
  reject "$1-leaves-no-cgroup" '^/sys/fs'
}
