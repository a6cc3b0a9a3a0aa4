# Limits hold in a cgroup that was given to the user without systemd, as container managers and
# administrators do. The shell is first in the given cgroup itself, then in a child of it.
give_cgroup() {
  mkdir -p "$1"
  chown dev:dev "$1" "$1"/cgroup.{procs,threads,subtree_control}
}

echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
give_cgroup /sys/fs/cgroup/box
print_limits_script | in_cgroup /sys/fs/cgroup/box > "$SEEN"
expect_limits given-cgroup

give_cgroup /sys/fs/cgroup/tree
echo '+cpu +memory +pids' > /sys/fs/cgroup/tree/cgroup.subtree_control
give_cgroup /sys/fs/cgroup/tree/shell
print_limits_script | in_cgroup /sys/fs/cgroup/tree/shell > "$SEEN"
expect_limits child-of-given-cgroup

# The leaf of a given cgroup stays for the next run, because ringfence itself is in it to the end.
rmdir /sys/fs/cgroup/box/ringfence-self /sys/fs/cgroup/box
rmdir /sys/fs/cgroup/tree/shell/ringfence-self /sys/fs/cgroup/tree/shell /sys/fs/cgroup/tree
