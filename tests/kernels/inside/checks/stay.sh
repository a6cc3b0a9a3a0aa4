# A sandbox that stays keeps its files between commands, holds its limits, and ends with its
# monitor.
PREFIX=$DELEGATED_SCOPE
in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
$PREFIX ringfence up a $WEAKER --memory 64M
ringfence exec a -- sh -c 'echo kept > /tmp/kept'
ringfence exec a -- cat /tmp/kept
ringfence exec a -- python3 -c 'x = bytearray(300 << 20)'
echo "exec $?"
ringfence stop a
SCRIPT
expect stay-keeps-files '^kept'
expect stay-holds-memory '^exec 137'
expect stay-stops '^stopped a'

in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
$PREFIX ringfence up b $WEAKER --memory 64M > /dev/null
ringfence exec b -- sh -c 'setsid sleep 4711 > /dev/null 2>&1 &'
pgrep -f 'sleep 4711' > /dev/null && echo started
kill -9 $(pgrep -f 'up --monitor')
sleep 2
echo after:
pgrep -af 'sleep 4711'
ringfence ps
find /sys/fs/cgroup -name 'ringfence-[0-9]*'
SCRIPT
expect stay-runs-in-the-background '^started'
sed -i '1,/^after:/d' "$SEEN"
reject stay-ends-with-its-monitor 'sleep 4711|^b |^/sys'
