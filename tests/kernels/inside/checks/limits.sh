# Limits hold in a login session, in the scope of our hint, in services of the user's manager and
# of the system's, and for root.
print_limits_script | in_login dev > "$SEEN"
if grep -q '^share' "$SEEN"; then
  expect_limits login
else
  expect login-names-the-delegated-scope 'hint: run it in a delegated scope'
fi

PREFIX=$DELEGATED_SCOPE
print_limits_script | in_login dev > "$SEEN"
expect_limits delegated-scope
PREFIX=

print_limits_script | in_user_service > "$SEEN"
expect_limits user-service

print_limits_script | in_user_service --property=Delegate=yes > "$SEEN"
expect_limits delegated-user-service

print_limits_script | in_system_service --property=Delegate=yes > "$SEEN"
expect_limits delegated-system-service

WORKSPACE=/srv/w
print_limits_script | in_login root > "$SEEN"
expect_limits root
