# Limits hold in a login session, in the scope of our hint.
PREFIX=$DELEGATED_SCOPE
print_limits_script | in_login dev > "$SEEN"
expect_limits delegated-scope
