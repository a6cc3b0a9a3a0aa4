# AppArmor keeps ringfence from using user namespaces, in the two ways that there are; the profile
# that our hint prints then lets it.
#
# Ubuntu's sysctl kernel.apparmor_restrict_unprivileged_userns is a patch that Debian lacks.
# What it does to a program without a profile, a profile for ringfence does here: the user namespace
# is made, and gives no capability.
profile=/etc/apparmor.d/ringfence

# load_profile FLAGS RULE...: replaces the profile of ringfence.
load_profile() {
  {
    echo 'abi <abi/4.0>,'
    echo 'include <tunables/global>'
    echo "profile ringfence /usr/local/bin/ringfence $1 {"
    shift
    printf '  %s\n' "$@"
    echo '}'
  } > "$profile"
  apparmor_parser --replace "$profile"
}

# check_restricted NAME: nothing runs as if it were isolated, and the user learns why.
check_restricted() {
  WEAKER=
  in_login dev > "$SEEN" <<'SCRIPT'
rm -rf ~/.cache/ringfence
cd ~/w
ringfence run -- true
SCRIPT
  expect "$1-is-refused" '^status 125'
  expect "$1-error-names-apparmor" 'AppArmor'
  reject "$1-no-hint-to-no-isolation" 'hint: run without isolation'

  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence doctor
SCRIPT
  expect "$1-doctor" '^status 0'
  sed -nE 's/^(native|bwrap|your settings)/# \1/p' "$SEEN"

  WEAKER='--allow-weaker filesystem --allow-weaker protect --allow-weaker processes'
  WEAKER="$WEAKER --allow-weaker ipc --allow-weaker cleanup"
  in_login dev > "$SEEN" <<'SCRIPT'
cd ~/w
ringfence run $WEAKER -- cat /home/dev/.profile
SCRIPT
  expect "$1-landlock-alone-denies" 'Permission denied'
}

features=/sys/kernel/security/apparmor/features
if ! grep -qs userns_create "$features/namespaces/mask"; then
  skip apparmor "AppArmor of this kernel does not mediate user namespaces"
  return
fi
echo "# kernel.apparmor_*: $(ls /proc/sys/kernel | grep -E 'apparmor' | tr '\n' ' ')"

if load_profile '' 'allow all,' 'audit deny userns,' > "$SEEN" 2>&1; then
  check_restricted apparmor-denies-namespaces
else
  echo "not ok apparmor-denies-namespaces: the profile is not loaded: $(quote_seen)"
fi
if load_profile '' 'allow all,' 'audit deny capability,' > "$SEEN" 2>&1; then
  check_restricted apparmor-denies-capabilities
  # The claims and the proofs of this column are those of Landlock alone, accepted by name.
  . ./checks/promises.sh
  . ./checks/prove.sh
else
  echo "not ok apparmor-denies-capabilities: the profile is not loaded: $(quote_seen)"
fi

WEAKER=
load_profile 'flags=(unconfined)' 'userns,' 'include if exists <local/ringfence>'
in_login dev > "$SEEN" <<'SCRIPT'
rm -rf ~/.cache/ringfence
cd ~/w
ringfence run -- echo isolated
SCRIPT
expect apparmor-profile-of-the-hint '^isolated'
apparmor_parser --remove "$profile"
rm "$profile"
