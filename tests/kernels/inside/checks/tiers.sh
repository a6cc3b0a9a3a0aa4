# Without user namespaces Landlock alone still holds what it can, once the user accepts that.
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor
SCRIPT
if grep -q '^landlock *none' "$SEEN"; then
  skip tiers 'this kernel has no Landlock'
  return
fi
namespaces=$(sysctl -n user.max_user_namespaces)
sysctl -q user.max_user_namespaces=0
in_login dev > "$SEEN" <<'SCRIPT'
rm -rf ~/.cache/ringfence
cd ~/w
ringfence run -- true
SCRIPT
expect refused-without-namespaces '^status 125'

WEAKER='--allow-weaker filesystem --allow-weaker protect --allow-weaker processes'
WEAKER="$WEAKER --allow-weaker ipc --allow-weaker cleanup"
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run $WEAKER -- cat /etc/shadow /home/dev/.profile
SCRIPT
expect landlock-alone-denies 'Permission denied'

in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run $WEAKER --json -- true
SCRIPT
expect landlock-alone-is-called-weaker '"filesystem":"weaker'
sysctl -q user.max_user_namespaces="$namespaces"
