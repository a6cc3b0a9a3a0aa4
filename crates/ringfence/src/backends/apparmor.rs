//! AppArmor's restriction of user namespaces (Ubuntu), and a profile that exempts one program.

use std::path::Path;

/// Returns a profile for `program` to install if AppArmor restricts user namespaces. The profile
/// exempts that one program, so the user need not turn the restriction off for the whole host.
pub(super) fn fix(program: &Path) -> Option<String> {
    restricts_namespaces().then(|| profile(program))
}

/// Tells whether AppArmor restricts unprivileged user namespaces on this host.
pub(super) fn restricts_namespaces() -> bool {
    let rule = fs_err::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    rule.is_ok_and(|rule| rule.trim() == "1")
}

/// Tells whether an AppArmor profile is enforced for this process (apparmor(7)).
///
/// This function reads `attr/apparmor/current` because other security modules write to the older
/// file `attr/current`, in another format.
pub(super) fn confines_this_process() -> bool {
    let current = fs_err::read_to_string("/proc/self/attr/apparmor/current");
    current.is_ok_and(|label| label.trim_end_matches(['\n', '\0']).ends_with("(enforce)"))
}

fn profile(program: &Path) -> String {
    let name =
        program.file_name().map_or_else(|| "ringfence".into(), |name| name.to_string_lossy());
    let path = program.display();
    format!(
        "AppArmor lets only named programs use user namespaces; name this one, as root:\n\
         \x20 cat > /etc/apparmor.d/{name} <<'END'\n\
         \x20 abi <abi/4.0>,\n\
         \x20 include <tunables/global>\n\
         \x20 profile {name} {path} flags=(unconfined) {{\n\
         \x20   userns,\n\
         \x20   include if exists <local/{name}>\n\
         \x20 }}\n\
         \x20 END\n\
         \x20 apparmor_parser -r /etc/apparmor.d/{name}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_names_one_program_and_no_sysctl() {
        let text = profile(Path::new("/usr/bin/bwrap"));
        assert!(text.contains("profile bwrap /usr/bin/bwrap flags=(unconfined)"), "{text}");
        assert!(text.contains("userns,"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }
}
