# A workspace works on each file system that a developer may have it on.
mount_scratch() {
  case $1 in
    ext4) mkfs.ext4 -qF /dev/vdd && mount /dev/vdd /mnt ;;
    tmpfs) mount -t tmpfs tmpfs /mnt ;;
    btrfs) modprobe btrfs && mkfs.btrfs -qf /dev/vdd > /dev/null && mount /dev/vdd /mnt ;;
    xfs) mkfs.xfs -qf /dev/vdd && mount /dev/vdd /mnt ;;
    overlay) mount_overlay ;;
    bind) mount --bind /srv /mnt ;;
  esac
}

mount_overlay() {
  modprobe overlay
  mkdir -p /overlay
  mount -t tmpfs tmpfs /overlay
  mkdir /overlay/{lower,upper,work}
  mount -t overlay overlay /mnt \
    -o lowerdir=/overlay/lower,upperdir=/overlay/upper,workdir=/overlay/work
}

for file_system in ext4 tmpfs btrfs xfs overlay bind; do
  if ! mount_scratch "$file_system" 2> "$SEEN"; then
    skip "files-$file_system" "cannot be mounted: $(quote_seen)"
    continue
  fi
  install -d -o dev -g dev /mnt/w
  in_login dev > "$SEEN" <<'SCRIPT'
cd /mnt/w
git init -q .
echo TOKEN > .env
cat > /tmp/inside <<'INSIDE'
mkdir -p a b
echo x > a/f && mv a/f b/f && ln b/f a/g
python3 -c 'import os; os.rename("b/f", "a/h"); print("renamed")'
cat .env
echo y > .git/hooks/pre-commit
printf '#!/bin/sh\necho ran\n' > s
chmod +x s
./s
INSIDE
ringfence run $WEAKER --hide '**/.env' -- sh -c "$(cat /tmp/inside)"
SCRIPT
  expect "files-$file_system-executes" '^ran'
  expect "files-$file_system-renames" '^renamed'
  expect "files-$file_system-hides" '.env: Permission denied'
  expect "files-$file_system-protects" 'pre-commit: Read-only'
  umount /mnt
  if [ "$file_system" = overlay ]; then
    umount /overlay
  fi
done
