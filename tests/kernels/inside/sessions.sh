# Ways to start a script in this machine. Each reads the script from standard input, and prints what
# the script prints and then `status N`, its exit status.

# Seconds that a script may take.
LIMIT=240

# Stores the script, with the variables that checks hand over to it.
store_script() {
  {
    echo 'export SYSTEMD_PAGER=cat LANG=C.UTF-8'
    for name in WEAKER BACKEND PREFIX WORKSPACE; do
      printf '%s=%q\n' "$name" "${!name:-}"
    done
    cat
  } > /tmp/script
  chmod 755 /tmp/script
}

run_script() {
  echo "timeout --foreground --kill-after=3 $LIMIT bash /tmp/script; echo \"status \$?\""
}

# in_login USER: in a login session of its own, which PAM and systemd-logind make.
in_login() {
  store_script
  machinectl --quiet shell "$1@" /bin/bash -lc "$(run_script)" < /dev/null 2>&1 | tr -d '\r'
}

# in_user_service [OPTION...]: as a service of dev's own systemd manager.
in_user_service() {
  store_script
  systemd-run --user --machine=dev@ --quiet --wait --pipe "$@" \
    /bin/bash -lc "cd; $(run_script)" < /dev/null 2>&1 | tr -d '\r'
}

# in_system_service [OPTION...]: as dev, in a service of the system's manager.
in_system_service() {
  store_script
  systemd-run --quiet --wait --pipe --property=User=dev "$@" \
    /bin/bash -c "export HOME=/home/dev; cd; $(run_script)" < /dev/null 2>&1 | tr -d '\r'
}

# in_cgroup CGROUP: as dev in a cgroup, without a session, a bus or a variable that leads to
# systemd.
in_cgroup() {
  store_script
  (
    echo "$BASHPID" > "$1/cgroup.procs"
    cd /home/dev || exit
    exec setpriv --reuid=dev --regid=dev --init-groups env -i HOME=/home/dev USER=dev PATH="$PATH" \
      bash -c "$(run_script)" < /dev/null 2>&1
  )
}

# Starts a command in a scope that systemd delegates, which is what our hint says.
DELEGATED_SCOPE='systemd-run --quiet --user --scope --property=Delegate=yes --'

# Prints the flags without which nothing runs on this host, if there are such flags.
find_weaker() {
  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run -- true
SCRIPT
  if grep -q '^status 0' "$SEEN"; then
    return
  fi
  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run --allow-weaker filesystem -- true
SCRIPT
  if grep -q '^status 0' "$SEEN"; then
    echo --allow-weaker filesystem
  fi
}
