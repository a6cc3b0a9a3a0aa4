# Becomes the sshd that is laid out in a directory.
umask 077
cd "$RINGFENCE_SSH_DIRECTORY" && printf '%s' "$RINGFENCE_SSH_CONFIGURATION" >config || exit
unset RINGFENCE_SSH_CONFIGURATION
exec "$RINGFENCE_SSH_SERVER" -D -f "$PWD/config" -E "$PWD/log" >/dev/null 2>&1
