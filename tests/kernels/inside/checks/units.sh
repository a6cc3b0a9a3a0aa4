# Other units come and go beside a run, and a limit of the caller's unit binds the run.
in_user_service > "$SEEN" <<'SCRIPT'
cd ~/w
cat > later.py <<'PYTHON'
import time
time.sleep(9)
start = time.time()
used = time.process_time()
while time.time() - start < 3:
    pass
print("share %.1f" % ((time.process_time() - used) / (time.time() - start)))
PYTHON
ringfence run $WEAKER --cpus 0.3 -- python3 later.py &
sleep 4
systemctl --user daemon-reload
systemd-run --user --quiet --wait --property=CPUWeight=50 true
systemd-run --user --quiet --wait true
wait
SCRIPT
# A busy machine gives less than the limit; without the limit it would be a whole processor.
expect cpus-survive-other-units '^share 0\.[1234]'

# run_in_scope [PROPERTY...]: has a run take 400 MB in a scope with these properties.
run_in_scope() {
  in_login dev > "$SEEN" <<SCRIPT
cat > /tmp/inner <<'INNER'
cd ~/w
sleep 30 &
ringfence run $WEAKER --processes 99 -- python3 -c 'x = bytearray(400 << 20); print("got", "all")'
INNER
systemd-run --quiet --user --scope --property=Delegate=yes $* -- bash /tmp/inner
SCRIPT
}
run_in_scope
expect run-without-a-limit-of-the-caller '^got all'
run_in_scope --property=MemoryMax=150M --property=MemorySwapMax=0
reject limit-of-the-caller-binds-the-run 'got all'

in_system_service --property=Delegate=yes > "$SEEN" <<'SCRIPT'
cd ~/w
sleep 20 &
ringfence run $WEAKER --memory 64M -- echo fine
ringfence run $WEAKER --memory 64M -- echo piped | cat
SCRIPT
expect delegated-service-with-a-sibling '^fine'
expect delegated-service-with-a-pipe '^piped'

# A manager that may not delegate `cpu` makes no scope in which --cpus works: a hint that names the
# scope that the caller is in already would lead nowhere.
drop_in=/etc/systemd/system/user@.service.d/delegate.conf
mkdir -p "${drop_in%/*}"
printf '[Service]\nDelegate=\nDelegate=pids memory\n' > "$drop_in"
systemctl daemon-reload
systemctl restart user@1000
in_login dev > "$SEEN" <<SCRIPT
cd ~/w
$DELEGATED_SCOPE ringfence run $WEAKER --cpus 0.5 -- true
SCRIPT
reject hint-for-cpus-is-not-the-scope-in-use 'hint: run it in a delegated scope'
rm "$drop_in"
systemctl daemon-reload
systemctl restart user@1000
