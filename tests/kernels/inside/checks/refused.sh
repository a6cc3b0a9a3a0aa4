# Nothing can isolate on this host: no run starts, and the user learns what each backend lacks.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run -- echo started
SCRIPT
expect run-is-refused '^status 125'
reject nothing-is-started '^started'
expect refusal-names-the-kernel 'the kernel is too old: Linux 5.12'
expect refusal-names-bubblewrap 'bwrap. is too old: '
expect hint-for-bubblewrap 'hint: '

for BACKEND in native bwrap; do
  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run --backend "$BACKEND" -- echo started
SCRIPT
  expect "$BACKEND-is-refused" '^status 125'
  reject "$BACKEND-starts-nothing" '^started'
done
