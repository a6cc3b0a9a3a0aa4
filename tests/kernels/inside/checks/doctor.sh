# `doctor` says for a user and for root what this host can hold.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor
SCRIPT
sed -nE 's/^(kernel|landlock|native|bwrap|podman|docker|your settings)/# \1/p' "$SEEN"
expect doctor '^status 0'

in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor --json > ~/doctor.json
python3 -c 'import json, sys; print(len(json.load(sys.stdin)["backends"]))' < ~/doctor.json
SCRIPT
expect doctor-json '^6$'

in_login root > "$SEEN" <<'SCRIPT'
cd /srv/w
ringfence doctor
SCRIPT
expect doctor-root '^your settings run (on (native|bwrap)|nowhere)'
