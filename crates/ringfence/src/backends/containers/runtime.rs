//! Known vulnerabilities of the OCI runtime with which an engine starts containers.

use bollard::models::SystemVersion;

use crate::backends::version::VersionNumber;

/// Returns warnings about the runtime of an engine.
pub(crate) fn warnings(version: &SystemVersion) -> Vec<String> {
    // Docker names the component `runc`. Podman names the component `OCI Runtime (runc)`, and the
    // version is the whole output of `runc --version`.
    let is_runc = |name: &str| name == "runc" || name == "OCI Runtime (runc)";
    let components =
        version.components.iter().flatten().filter(|component| is_runc(&component.name));
    let text = |version: &str| -> Option<String> {
        let words = version.strip_prefix("runc version ").unwrap_or(version);
        words.split_whitespace().next().map(str::to_owned)
    };
    components.filter_map(|component| escapable(&text(&component.version)?)).collect()
}

/// Returns a warning if a version of runc is known to allow escapes.
fn escapable(version: &str) -> Option<String> {
    let number = VersionNumber::parse(version)?;
    let candidate = VersionNumber { candidate: 3, ..VersionNumber::new(1, 4, 0) };
    let is_fixed = match (number.major, number.minor) {
        (1, 2) => number >= VersionNumber::new(1, 2, 8),
        (1, 3) => number >= VersionNumber::new(1, 3, 3),
        _ => number >= candidate,
    };
    (!is_fixed).then(|| {
        format!(
            "runc {version} may be escaped from (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881), \
             unless its distributor has patched it: 1.2.8, 1.3.3 and 1.4.0 have the fixes"
        )
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::SystemVersionComponents;

    use super::*;

    #[test]
    fn exactly_the_escapable_versions_of_runc_are_reported() {
        for bad in ["1.0.0-rc93", "1.1.5+ds1", "1.1.15", "1.2.7", "1.3.2", "1.4.0-rc.2"] {
            assert!(escapable(bad).is_some(), "{bad}");
        }
        for good in ["1.2.8", "1.2.9", "1.3.3", "1.4.0-rc.3", "1.4.0", "2.0.0"] {
            assert_eq!(escapable(good), None, "{good}");
        }
    }

    #[test]
    fn the_runtime_is_found_in_what_either_engine_says() {
        let said = |name: &str, version: &str| SystemVersion {
            components: Some(vec![SystemVersionComponents {
                name: name.to_owned(),
                version: version.to_owned(),
                details: None,
            }]),
            ..SystemVersion::default()
        };
        let podman =
            said("OCI Runtime (runc)", "runc version 1.1.5+ds1\ncommit: x\nspec: 1.0.2-dev");
        for version in [said("runc", "1.1.5+ds1"), podman] {
            let [warning] = &warnings(&version)[..] else { panic!("{version:?}") };
            assert!(
                warning.starts_with("runc 1.1.5+ds1 may be escaped from (CVE-2025-31133"),
                "{warning}"
            );
        }
        assert_eq!(warnings(&said("OCI Runtime (crun)", "crun version 1.14")), [] as [String; 0]);
    }
}
