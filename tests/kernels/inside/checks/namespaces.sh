# The administrator forbids user namespaces after they worked: results of earlier probes are not
# taken for current, and the error names the setting.
if [ ! -e /proc/sys/kernel/unprivileged_userns_clone ]; then
  skip namespaces-forbidden 'this kernel lacks kernel.unprivileged_userns_clone'
  return
fi
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run --backend native -- true
SCRIPT
if ! grep -q '^status 0' "$SEEN"; then
  skip namespaces-forbidden 'native does not work here even with user namespaces'
  return
fi

normal_weaker=$WEAKER
WEAKER='--allow-weaker filesystem --allow-weaker protect --allow-weaker processes'
WEAKER="$WEAKER --allow-weaker ipc --allow-weaker cleanup"
sysctl -q kernel.unprivileged_userns_clone=0
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor > /dev/null
ringfence run $WEAKER -- true
SCRIPT
if grep -q landlock /sys/kernel/security/lsm; then
  expect landlock-alone-after-namespaces-worked '^status 0'
else
  skip landlock-alone-after-namespaces-worked 'this kernel has no Landlock'
fi

WEAKER=$normal_weaker
in_login dev > "$SEEN" <<'SCRIPT'
rm -rf ~/.cache/ringfence
cd ~/w
ringfence run $WEAKER -- true
SCRIPT
expect error-names-the-setting 'unprivileged_userns_clone'
sysctl -q kernel.unprivileged_userns_clone=1
