# Rootless podman, with crun as Debian installs it: limits of the policy reach the container.
in_login dev > "$SEEN" <<'SCRIPT'
tree=$(mktemp -d)
chmod 755 "$tree"
mkdir -p "$tree"/{bin,tmp,etc}
cp /bin/busybox "$tree/bin/"
for name in sh cat dd sleep id; do
  ln -s busybox "$tree/bin/$name"
done
tar -C "$tree" -c . | podman import - localhost/busybox:latest
podman info --format 'runtime {{.Host.OCIRuntime.Name}}'
systemctl --user start podman.socket
cd ~/w
ringfence up p --backend podman --image localhost/busybox:latest --memory 64M --cpus 0.5 \
  --processes 20
ringfence exec p -- cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max
ringfence exec --json p -- dd if=/dev/zero of=/dev/null bs=300M count=1 |
  grep -o '"oom_killed":[a-z]*'
ringfence stop p
echo "left $(podman ps --all --quiet | wc -l)"
SCRIPT
expect podman-runtime-is-crun '^runtime crun'
expect podman-up 'is up, on podman'
expect podman-memory '^67108864'
expect podman-cpus '^50000 100000'
expect podman-oom '"oom_killed":true'
expect podman-stops '^stopped p'
expect podman-leaves-no-container '^left 0'
