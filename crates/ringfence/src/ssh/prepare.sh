# Lays out what an sshd of the sandbox's own user needs, and says where and who it is. Exits with 3 when there is no
# sshd, with 4 when the user has no name, and with 5 when sshd would find the user's account locked.
set -u
umask 077
sshd=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v sshd) && command -v ssh-keygen >/dev/null || exit 3
user=$(id -un) || exit 4
# Only a user with capabilities can read this, and then sshd does.
case $(grep "^$user:" /etc/shadow 2>/dev/null) in "$user:!"*) exit 5 ;; esac
# The host's own directory where there is no wall between; anywhere else it does not exist.
base=$RINGFENCE_SSH_DIRECTORY
{ test -d "$base" && test -w "$base"; } || base=${TMPDIR:-/tmp}
directory=$base/.ringfence-ssh-$RINGFENCE_SSH_IDENTITY
mkdir -p "$directory" || exit
test -s "$directory/host_key" || ssh-keygen -q -t ed25519 -N '' -C '' -f "$directory/host_key" || exit
printf '%s' "$RINGFENCE_SSH_KEYS" >"$directory/.keys" && mv -f "$directory/.keys" "$directory/authorized_keys" || exit
printf '%s\n' "$(id -u)" "$user" "$sshd" "$directory" "$(cat "$directory/host_key.pub")" || exit
cat /proc/self/environ
