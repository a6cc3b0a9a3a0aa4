# A memory limit bounds memory and swap together: a run cannot grow into the swap of the host.
fallocate --length 400M /swap
chmod 600 /swap
mkswap --quiet /swap 2>/dev/null || mkswap /swap > /dev/null
if ! swapon /swap; then
  skip memory-with-swap 'this kernel has no swap'
  return
fi
in_login dev > "$SEEN" <<SCRIPT
cd ~/w
$DELEGATED_SCOPE ringfence run $WEAKER --memory 64M -- python3 -c 'x = bytearray(300 << 20)'
SCRIPT
expect memory-with-swap '^status 137'
swapoff /swap
