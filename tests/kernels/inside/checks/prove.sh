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
    if grep -q "backend .$BACKEND. does not work here" "$SEEN"; then
      echo "promise proved-$BACKEND-$user not available"
      skip "prove-$BACKEND-$user" 'the backend does not work here, and says so'
      continue
    fi
    sed -nE "s/^([0-9]+ of [0-9]+ attempts.*)/promise proved-$BACKEND-$user \1/p" "$SEEN"
    expect "prove-$BACKEND-$user" '^status 0'
    expect "prove-$BACKEND-$user-attempts" '^[0-9]+ of [0-9]+ attempts'
    reject "prove-$BACKEND-$user-breaks-nothing" '^ *BROKEN'
  done
done
