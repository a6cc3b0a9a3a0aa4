# Prints what the backends claim on this host for an ordinary user, as lines of docs/promises.md.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor --json > ~/doctor.json
python3 - ~/doctor.json <<'PYTHON'
import json, sys

def claim(backend, clause):
    support = backend.get("clauses", {}).get(clause)
    if support is None:
        return "not available"
    if "enforced" in support:
        return support["enforced"]["by"].removeprefix("bubblewrap: ")
    return "weaker: " + support["weaker"]["how"] if "weaker" in support else "absent"

with open(sys.argv[1]) as file:
    backends = {backend["backend"]: backend for backend in json.load(file)["backends"]}
native, bwrap = backends["native"], backends["bwrap"]
# `local` works everywhere and so knows all clauses, whatever it claims.
for clause in backends["local"]["clauses"]:
    ours, theirs = claim(native, clause), claim(bwrap, clause)
    print("promise", clause, ours if ours == theirs else f"native: {ours}; bwrap: {theirs}")
PYTHON
SCRIPT
grep '^promise ' "$SEEN"
expect promises '^promise filesystem '
expect promises-end '^status 0'
