//! Detection of the container or cloud workspace that ringfence runs in.

use std::path::Path;

/// Access to the host for detection. Tests use a host of their own.
pub trait HostView {
    /// Returns `true` if a path exists.
    fn exists(&self, path: &Path) -> bool;
    /// Returns the text of a file, or `None` if the file cannot be read.
    fn read(&self, path: &Path) -> Option<String>;
    /// Returns the value of an environment variable, or `None` if it is unset.
    fn variable(&self, name: &str) -> Option<String>;
}

/// Container or cloud workspace that this process runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedContainer {
    /// Kind of the container: docker, codespaces, gitpod, container or podman.
    pub name: &'static str,
    /// Evidence for the container, such as `/.dockerenv exists`.
    pub evidence: String,
}

/// Looks for the signs of a container in the documented order, and returns the first that matches.
pub fn detect_container(host: &impl HostView) -> Option<DetectedContainer> {
    let found =
        |name, evidence: &str| Some(DetectedContainer { name, evidence: evidence.to_owned() });
    if host.exists(Path::new("/.dockerenv")) {
        return found("docker", "/.dockerenv exists");
    }
    if host.variable("CODESPACES").as_deref() == Some("true") {
        return found("codespaces", "CODESPACES=true");
    }
    if host.variable("GITPOD_WORKSPACE_ID").is_some_and(|id| !id.is_empty()) {
        return found("gitpod", "GITPOD_WORKSPACE_ID is set");
    }
    let cgroup = host.read(Path::new("/proc/1/cgroup")).unwrap_or_default();
    if let Some(word) =
        ["docker", "kubepods", "containerd"].into_iter().find(|word| cgroup.contains(word))
    {
        return found("container", &format!("/proc/1/cgroup names {word}"));
    }
    if host.exists(Path::new("/run/.containerenv")) {
        return found("podman", "/run/.containerenv exists");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct FakeHost {
        files: Vec<(&'static str, &'static str)>,
        variables: Vec<(&'static str, &'static str)>,
    }

    impl HostView for FakeHost {
        fn exists(&self, path: &Path) -> bool {
            self.read(path).is_some()
        }

        fn read(&self, path: &Path) -> Option<String> {
            self.files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        }

        fn variable(&self, name: &str) -> Option<String> {
            self.variables
                .iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    #[track_caller]
    fn check(
        files: &[(&'static str, &'static str)],
        variables: &[(&'static str, &'static str)],
        expected: Option<(&str, &str)>,
    ) {
        let found =
            detect_container(&FakeHost { files: files.to_vec(), variables: variables.to_vec() });
        assert_eq!(
            found.as_ref().map(|container| (container.name, container.evidence.as_str())),
            expected
        );
    }

    const DOCKERENV: (&str, &str) = ("/.dockerenv", "");
    const CONTAINERENV: (&str, &str) = ("/run/.containerenv", "");
    const DOCKER_CGROUP: (&str, &str) = ("/proc/1/cgroup", "0::/docker/abc123\n");

    #[test]
    fn every_sign_of_a_container_is_recognised_alone() {
        check(&[DOCKERENV], &[], Some(("docker", "/.dockerenv exists")));
        check(&[], &[("CODESPACES", "true")], Some(("codespaces", "CODESPACES=true")));
        check(
            &[],
            &[("GITPOD_WORKSPACE_ID", "x-1")],
            Some(("gitpod", "GITPOD_WORKSPACE_ID is set")),
        );
        check(&[DOCKER_CGROUP], &[], Some(("container", "/proc/1/cgroup names docker")));
        check(
            &[("/proc/1/cgroup", "1:name=systemd:/kubepods/besteffort/pod1")],
            &[],
            Some(("container", "/proc/1/cgroup names kubepods")),
        );
        check(
            &[("/proc/1/cgroup", "0::/system.slice/containerd.service")],
            &[],
            Some(("container", "/proc/1/cgroup names containerd")),
        );
        check(&[CONTAINERENV], &[], Some(("podman", "/run/.containerenv exists")));
    }

    #[test]
    fn an_earlier_sign_wins_over_a_later_one() {
        let variables = [("CODESPACES", "true"), ("GITPOD_WORKSPACE_ID", "x")];
        let files = [DOCKERENV, DOCKER_CGROUP, CONTAINERENV];
        check(&files, &variables, Some(("docker", "/.dockerenv exists")));
        check(&files[1..], &variables, Some(("codespaces", "CODESPACES=true")));
        check(&files[1..], &variables[1..], Some(("gitpod", "GITPOD_WORKSPACE_ID is set")));
        check(&files[1..], &[], Some(("container", "/proc/1/cgroup names docker")));
        check(&files[2..], &[], Some(("podman", "/run/.containerenv exists")));
    }

    #[test]
    fn text_that_resembles_a_sign_is_no_container() {
        check(&[], &[], None);
        check(&[("/proc/1/cgroup", "0::/init.scope\n")], &[], None);
        check(&[], &[("CODESPACES", "false"), ("GITPOD_WORKSPACE_ID", "")], None);
    }
}
