use super::*;
use crate::settings::dialect::Dialect;

const DOCKER: DetectedContainer = DetectedContainer { name: "docker", evidence: String::new() };

/// Resolves the request `asked` on a host where exactly the backends in `working` work.
///
/// `asked` is `NAME=value` of a `SANDBOX_*` variable, `backend=NAME`, or empty for no request.
fn choose(
    asked: &str,
    working: &[Backend],
    container: Option<&DetectedContainer>,
) -> Result<ChosenBackend, ChooseError> {
    let (selection, source) = match asked.split_once('=') {
        None => (BackendSelection::Auto, ValueSource::BuiltIn),
        Some(("backend", name)) => {
            (name.parse::<BackendChoice>().unwrap().into(), ValueSource::Flag("--backend".into()))
        }
        Some((name, value)) => {
            let dialect = Dialect::read([(name.to_owned(), value.to_owned())]).unwrap();
            (dialect.selection.unwrap(), ValueSource::Variable(name.to_owned()))
        }
    };
    let available = |backend| {
        if working.contains(&backend) { Ok(()) } else { Err(format!("no {backend} here")) }
    };
    resolve(selection, &source, available, container)
}

#[track_caller]
fn check(
    asked: &str,
    working: &[Backend],
    container: Option<&DetectedContainer>,
    backend: Backend,
    notices: &[(NoticeLevel, &str)],
) {
    let chosen =
        choose(asked, working, container).unwrap_or_else(|error| panic!("{asked}: {error}"));
    let said: Vec<_> =
        chosen.notices.iter().map(|notice| (notice.level, notice.message.as_str())).collect();
    assert_eq!((chosen.backend, said.as_slice()), (backend, notices), "{asked}");
    assert!(!chosen.because.is_empty());
}

#[track_caller]
fn refuse(asked: &str, working: &[Backend], container: Option<&DetectedContainer>, message: &str) {
    let error = choose(asked, working, container).unwrap_err();
    assert_eq!(error.to_string(), message);
    assert!(!error.hints().is_empty());
}

use Backend::{Bwrap, Docker, E2b, Local, Native, Outer, Podman};

const INSIDE: (NoticeLevel, &str) =
    (NoticeLevel::Info, "Running inside docker, container provides isolation");
const NOTHING: &str = "no backend can isolate here: native: no native here; bwrap: no bwrap here; \
    no container was detected";

#[test]
fn auto_takes_native_then_bwrap_then_a_container_and_else_refuses() {
    check("", &[Native, Bwrap], Some(&DOCKER), Native, &[]);
    check("", &[Bwrap], Some(&DOCKER), Bwrap, &[]);
    check("", &[], Some(&DOCKER), Outer, &[INSIDE]);
    refuse("", &[], None, NOTHING);
    refuse("", &[Local, Outer, Docker], None, NOTHING);
    assert_eq!(choose("", &[], None).unwrap_err().hints().len(), 3, "three ways forward");
}

#[test]
fn a_backend_chosen_by_name_has_no_fallback() {
    for backend in Backend::ALL {
        let asked = format!("backend={backend}");
        check(&asked, &[backend], None, backend, &[]);
        let others: Vec<_> = Backend::ALL.into_iter().filter(|other| *other != backend).collect();
        let message = format!(
            "backend `{backend}`, asked for by --backend, does not work here: no {backend} here"
        );
        refuse(&asked, &others, Some(&DOCKER), &message);
    }
}

#[test]
fn every_value_of_sandbox_mode_selects_as_documented() {
    check("SANDBOX_MODE=auto", &[Bwrap, Native], None, Bwrap, &[]);
    check("SANDBOX_MODE=auto", &[Bwrap], Some(&DOCKER), Bwrap, &[]);
    check("SANDBOX_MODE=auto", &[Native], Some(&DOCKER), Outer, &[INSIDE]);
    check(
        "SANDBOX_MODE=auto",
        &[Native],
        None,
        Local,
        &[(NoticeLevel::Warning, "No sandbox tool found")],
    );
    let trust = (NoticeLevel::Info, "SANDBOX_MODE=container, trusting container boundary");
    check("SANDBOX_MODE=container", &[Bwrap, Native], None, Outer, &[trust]);
    check("SANDBOX_MODE=container", &[], Some(&DOCKER), Outer, &[trust]);
    check("SANDBOX_MODE=bwrap", &[Bwrap], Some(&DOCKER), Bwrap, &[]);
    let required =
        "SANDBOX_MODE=bwrap but bwrap is not available. Install with: apt install bubblewrap";
    refuse("SANDBOX_MODE=bwrap", &[Native], Some(&DOCKER), required);
}

#[test]
fn sandbox_method_never_falls_back() {
    for (value, backend) in
        [("bwrap", Bwrap), ("docker", Docker), ("podman", Podman), ("noop", Local)]
    {
        let asked = format!("SANDBOX_METHOD={value}");
        check(&asked, &[backend], None, backend, &[]);
        let others: Vec<_> = Backend::ALL.into_iter().filter(|other| *other != backend).collect();
        let message = format!(
            "backend `{backend}`, asked for by SANDBOX_METHOD, does not work here: no {backend} \
             here"
        );
        refuse(&asked, &others, Some(&DOCKER), &message);
    }
}

#[test]
fn every_value_of_sandbox_type_selects_as_documented() {
    check("SANDBOX_TYPE=local", &[Native, Bwrap], None, Native, &[]);
    check("SANDBOX_TYPE=local", &[Bwrap], None, Bwrap, &[]);
    check("SANDBOX_TYPE=local", &[], Some(&DOCKER), Outer, &[INSIDE]);
    refuse("SANDBOX_TYPE=local", &[Local], None, NOTHING);
    check("SANDBOX_TYPE=docker", &[Docker, Native], None, Docker, &[]);
    let fallback = "SANDBOX_TYPE=docker but docker is not available (no docker here), using native";
    check("SANDBOX_TYPE=docker", &[Native], None, Native, &[(NoticeLevel::Warning, fallback)]);
    refuse("SANDBOX_TYPE=docker", &[], None, NOTHING);
    check("SANDBOX_TYPE=e2b", &[E2b], None, E2b, &[]);
    refuse(
        "SANDBOX_TYPE=e2b",
        &[Native, Docker],
        None,
        "backend `e2b`, asked for by SANDBOX_TYPE, does not work here: no e2b here",
    );
}
