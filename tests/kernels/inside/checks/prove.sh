# No attempt of `doctor --prove` breaks a promise, on either backend, for a user and for root.
LIMIT=900
for BACKEND in native bwrap; do
  for user in dev root; do
    WORKSPACE=/home/dev/w
    if [ "$user" = root ]; then
      WORKSPACE=/srv/w
    fi
    in_login "$user" > "$SEEN" <<'SCRIPT'
cd "$WORKSPACE"
ringfence doctor --prove --backend "$BACKEND" $WEAKER > ~/proved
status=$?
grep -vE '^ *(held|not claimed)' ~/proved
exit $status
SCRIPT
    expect "prove-$BACKEND-$user" '^status 0'
    expect "prove-$BACKEND-$user-attempts" '^[0-9]+ of [0-9]+ attempts'
    reject "prove-$BACKEND-$user-breaks-nothing" '^ *BROKEN'
  done
done
