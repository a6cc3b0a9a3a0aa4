//! Programs that git on the host executes after a run. A program of the sandbox must be reported by
//! the run.
//!
//! A vector has a setting with which git runs a program, a scope from which git takes the setting,
//! and a trick with which the sandbox changes the file of that scope. Each vector gets a fresh
//! repository. The sandbox's program, called the marker, leaves a trace when it runs. The control
//! runs the same scripts without a sandbox: the marker must run there, or the vector would prove
//! nothing.
//!
//! By default, the tests run a share of the vectors. `RINGFENCE_GIT_VECTORS=all` runs every vector,
//! and `RINGFENCE_GIT_VECTORS=TEXT` runs those whose name contains the text.

mod checkouts;
mod indexes;
mod meanings;
mod ordinary_use;
mod scopes;
mod scripts;
mod settings;
mod site;
mod states;
mod vector;
mod worktree_links;
mod writes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::{BackendSetup, BackendVariant, Caller};
use ringfence_test_ledger::require;

use self::scopes::{CONFIGURATIONS, HOOK_DIRECTORIES, SPELLINGS, SPELT};
use self::settings::{
    FSMONITOR, HOOKS, MAIN, MORE, OF_CLONES, PACK_OBJECTS_HOOK, PRE_COMMIT, SUBMODULE_UPDATE,
};
use self::site::RepositoryTemplates;
use self::vector::{FilePayload, GitScope, GitSetting, GitVector, MARKER, PLAIN, TRICKS, compose};

/// Environment variable that selects the vectors to run.
const FILTER_VARIABLE: &str = "RINGFENCE_GIT_VECTORS";
/// Least number of vectors that the tests run by default.
const MIN_VECTORS: usize = 500;
/// Approximate number of vectors on the slower backends.
const SAMPLED_VECTORS: usize = 60;
const THREADS: usize = 4;

/// Returns every vector, whether or not a filter is set.
fn all_vectors() -> Vec<GitVector> {
    let mut vectors = Vec::new();
    for scope in &CONFIGURATIONS {
        let add = |setting: &GitSetting| {
            compose(scope, setting, FilePayload::Added(setting.config), &PLAIN)
        };
        vectors.push(add(&FSMONITOR));
        vectors.extend(MAIN.iter().map(add).map(|vector| GitVector { share: 2, ..vector }));
        if ["config", "include-nested", "submodule-nine-parts"].contains(&scope.name) {
            let share = if scope.name == "config" { 1 } else { 4 };
            vectors.extend(MORE.iter().map(add).map(|vector| GitVector { share, ..vector }));
        }
        if ["global-include", "global-xdg-include", "system-include"].contains(&scope.name) {
            vectors.push(add(&PACK_OBJECTS_HOOK));
            let superproject = GitScope { template: "uninitialised", ..*scope };
            let clones = OF_CLONES.iter();
            vectors.extend(clones.map(|setting| {
                compose(&superproject, setting, FilePayload::Added(setting.config), &PLAIN)
            }));
        }
        let tricks = TRICKS.iter().filter(|trick| trick.fits(scope));
        vectors.extend(
            tricks.map(|trick| {
                compose(scope, &FSMONITOR, FilePayload::Added(FSMONITOR.config), trick)
            }),
        );
    }
    for (spelling, script) in SPELLINGS {
        let prepare = format!("mkdir w/conf; : > w/conf/inc\n{script}").leak();
        let name = format!("include-{spelling}").leak();
        let scope = GitScope { name, prepare, ..SPELT };
        vectors.push(compose(&scope, &FSMONITOR, FilePayload::Added(FSMONITOR.config), &PLAIN));
    }
    let superproject = GitScope {
        name: "superproject",
        template: "super-sub",
        file: ".git/config",
        ..GitScope::PLAIN
    };
    let payload = FilePayload::Added(SUBMODULE_UPDATE.config);
    vectors.push(compose(&superproject, &SUBMODULE_UPDATE, payload, &PLAIN));
    for directory in &HOOK_DIRECTORIES {
        let in_directory = |hook: &GitSetting| {
            let file: &'static str = format!("{}/{}", directory.file, hook.name).leak();
            GitScope {
                file,
                file_exists: directory.file_exists && hook.name == PRE_COMMIT.name,
                ..*directory
            }
        };
        let scope = in_directory(&PRE_COMMIT);
        let tricks =
            [PLAIN].into_iter().chain(TRICKS.into_iter().filter(|trick| trick.fits(&scope)));
        vectors.extend(
            tricks.map(|trick| compose(&scope, &PRE_COMMIT, FilePayload::Whole(MARKER), &trick)),
        );
        if ["hooks", "hooks-path-global", "hooks-of-submodule"].contains(&directory.name) {
            let hooks = HOOKS.iter();
            vectors.extend(hooks.map(|hook| {
                compose(&in_directory(hook), hook, FilePayload::Whole(MARKER), &PLAIN)
            }));
        }
    }
    vectors.extend(checkouts::vectors());
    vectors.extend(indexes::vectors());
    vectors.extend(meanings::vectors());
    vectors.extend(states::vectors());
    vectors.extend(scripts::vectors());
    vectors.extend(writes::vectors());
    vectors
}

/// Returns the vectors that the variable selects, or a share of each kind if the variable is not
/// set.
fn chosen_vectors() -> Vec<GitVector> {
    let vectors = all_vectors();
    match std::env::var(FILTER_VARIABLE).as_deref() {
        Ok("all") => vectors,
        Ok(filter) => vectors.into_iter().filter(|vector| vector.id.contains(filter)).collect(),
        Err(_) => {
            let is_chosen = |vector: &GitVector| vector.hash().is_multiple_of(vector.share);
            vectors.into_iter().filter(is_chosen).collect()
        }
    }
}

/// Returns every nth vector, so that about [`SAMPLED_VECTORS`] are left.
fn sampled_vectors() -> Vec<GitVector> {
    let vectors = chosen_vectors();
    let step = (vectors.len() / SAMPLED_VECTORS).max(1);
    vectors.into_iter().step_by(step).collect()
}

/// Judges vectors in parallel, and fails with a line for each vector that is broken.
#[track_caller]
fn check_each(vectors: &[GitVector], judge: impl Fn(&GitVector) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(vector) = vectors.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = judge(vector) {
                        let line = format!("{}: {failure}", vector.id);
                        failures.lock().expect("no holder panics").push(line);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no holder panics");
    failures.sort();
    let (count, all) = (failures.len(), vectors.len());
    let lines = failures.join("\n");
    assert!(
        failures.is_empty(),
        "{count} of {all} vectors failed; {FILTER_VARIABLE}=NAME runs one:\n{lines}"
    );
}

/// Runs vectors in a sandbox. Afterwards git on the host must not run the marker, unless the run
/// reported its file.
#[track_caller]
fn check_held(setup: BackendSetup, vectors: &[GitVector]) {
    let templates = RepositoryTemplates::build(setup);
    check_each(vectors, |vector| {
        let site = templates.copy_for(vector);
        let mut planted = Vec::new();
        for script in &vector.runs {
            let report = site.run_in_sandbox(script, vector);
            planted.extend(report.planted);
            if let Some(words) = report.refusal.filter(|_| !vector.may_be_refused) {
                return Err(format!("the run did not reach its end: {words}"));
            }
        }
        if site.take_marker() {
            return Err("the marker ran during the run".to_owned());
        }
        site.run_on_host(&vector.host, vector);
        if site.take_marker() && !vector.is_reported_by(&planted, site.workspace()) {
            return Err(format!("git ran the marker, and reported was {planted:?}"));
        }
        Ok(())
    });
}

#[test]
fn git_vectors_are_numerous_and_have_unique_names() {
    let chosen = chosen_vectors().len();
    let is_restricted = std::env::var_os(FILTER_VARIABLE).is_some();
    assert!(chosen >= MIN_VECTORS || is_restricted, "the tests run {chosen} vectors");
    let mut names: Vec<String> = all_vectors().into_iter().map(|vector| vector.id).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_git_vector_runs_its_marker_without_a_sandbox() {
    require!(ordinary_user, git);
    let setup = BackendSetup { variant: BackendVariant::Local, caller: Caller::Ordinary };
    let templates = RepositoryTemplates::build(setup);
    check_each(&chosen_vectors(), |vector| {
        let site = templates.copy_for(vector);
        let mut words = String::new();
        for script in &vector.runs {
            let output = site.run_on_host(script, vector);
            words.push_str(&String::from_utf8_lossy(&output.stderr));
        }
        site.take_marker();
        let output = site.run_on_host(&vector.host, vector);
        if site.take_marker() {
            return Ok(());
        }
        words.push_str(&String::from_utf8_lossy(&output.stderr));
        Err(format!(
            "proves nothing, its marker did not run: {}",
            words.trim().replace('\n', " | ")
        ))
    });
}

#[test]
fn git_runs_nothing_unreported_after_native_runs_of_root() {
    require!(root, binary, user_namespaces, git);
    check_held(
        BackendSetup { variant: BackendVariant::Native, caller: Caller::Root },
        &chosen_vectors(),
    );
}

#[test]
fn git_runs_nothing_unreported_after_native_runs_of_an_ordinary_user() {
    require!(binary, ordinary_user, ordinary_user_namespaces, git);
    check_held(
        BackendSetup { variant: BackendVariant::Native, caller: Caller::Ordinary },
        &chosen_vectors(),
    );
}

#[test]
fn git_runs_nothing_unreported_after_runs_in_bubblewrap() {
    require!(root, binary, user_namespaces, bwrap, git);
    check_held(
        BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root },
        &sampled_vectors(),
    );
}

#[test]
fn git_runs_nothing_unreported_after_runs_in_docker() {
    require!(root, binary, docker, test_image_dev, git);
    check_held(
        BackendSetup { variant: BackendVariant::Docker, caller: Caller::Root },
        &sampled_vectors(),
    );
}

#[test]
fn a_run_without_json_warns_about_each_reported_file() {
    require!(root, binary, user_namespaces, git);
    let setup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
    let name = "config-worktree-absent/fsmonitor/plain";
    let vector =
        all_vectors().into_iter().find(|vector| vector.id == name).expect("it is one of them");
    let site = RepositoryTemplates::build(setup).copy_for(&vector);
    let words = site.warnings_of_run(&vector.runs[0], &vector);
    assert!(words.contains("`.git/config.worktree`"), "{words}");
}
