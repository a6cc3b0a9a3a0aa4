//! Tests of search results that are saved for the next run.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// Description of a change, and the change itself.
type NamedChange<'a, T> = (&'a str, &'a dyn Fn(&T));

/// Creates a repository with a submodule, large enough for search results to be saved.
fn superproject() -> TestWorkspace {
    let place = repository();
    for file in ["HEAD", "config", "objects/x", "refs/heads/x", "hooks/x", "logs/x", "info/x"] {
        place.write(&format!("ws/.git/modules/sub/{file}"), "");
    }
    place.write("ws/.git/index", index_with_submodule("sub"));
    place.write("ws/.gitmodules", "[submodule \"sub\"]\n\tpath = sub\n");
    place.write("ws/sub/.git", "gitdir: ../.git/modules/sub\n");
    place.write("home/.gitconfig", "[include]\n\tpath = more\n");
    (0..20).for_each(|number| place.write(&format!("ws/0{number}/x"), ""));
    place
}

/// Returns the files of saved results.
fn results(place: &TestWorkspace) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(place.path("home/.cache/ringfence")) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b"search-"))
        .collect()
}

/// Searches until the result is saved, which needs time stamps that are old enough.
fn keep_result(place: &TestWorkspace) -> Guarded {
    loop {
        let guarded = place.guarded(&[]);
        guarded.survey();
        if !results(place).is_empty() {
            return guarded;
        }
    }
}

#[test]
fn a_kept_result_is_that_of_a_search() {
    let place = superproject();
    let searched = keep_result(&place);
    let kept = place.guarded(&[]);
    assert!(!kept.watched().has_unsaved_search());
    assert!(searched.is_same(&kept));
    assert_eq!(place.steps(&searched, &[]), place.steps(&kept, &[]));
    assert_eq!(kept.planted(), [] as [&str; 0]);
    place.write("ws/sub/.git", "gitdir: ../elsewhere\n");
    place.write("ws/.git/modules/sub/commondir", "../../../elsewhere\n");
    assert_eq!(kept.planted(), [".git/modules/sub/commondir", "sub/.git"]);
}

#[test]
fn a_result_serves_only_while_nothing_changed_that_the_search_looked_at() {
    let changes: [NamedChange<'_, TestWorkspace>; 9] = [
        ("configuration", &|place| place.write("ws/.git/config", "[core]\n\thooksPath = 01\n")),
        ("index", &|place| place.write("ws/.git/index", index_with_submodule("other"))),
        ("configuration of the submodule", &|place| {
            place.write("ws/.git/modules/sub/config", "[core]\n\thooksPath = hooks\n");
            place.write("ws/sub/hooks/x", "");
        }),
        ("link to a repository", &|place| place.write("ws/sub/.git", "gitdir: ../01\n")),
        ("file that the user's configuration includes", &|place| {
            place.write("home/more", "[core]\n\thooksPath = 01\n")
        }),
        ("repository further down", &|place| place.write("ws/01/.git/config", "")),
        ("replaced commit", &|place| place.write("ws/.git/refs/replace/x", "")),
        ("directory in place of another", &|place| {
            fs_err::rename(place.path("ws/.git/modules/sub"), place.path("ws/old")).unwrap();
            fs_err::create_dir(place.path("ws/.git/modules/sub")).unwrap();
        }),
        ("closed directory", &|place| {
            let closed = std::fs::Permissions::from_mode(0o600);
            fs_err::set_permissions(place.path("ws/.git/modules"), closed).unwrap();
        }),
    ];
    for (what, change) in changes {
        let place = superproject();
        let old = keep_result(&place);
        assert!(old.is_same(&place.guarded(&[])), "{what}");
        change(&place);
        let found = place.guarded(&[]);
        fs_err::remove_file(&results(&place)[0]).unwrap();
        assert!(found.is_same(&place.guarded(&[])), "a result of another state was used: {what}");
        assert!(!found.is_same(&old), "the change changes nothing: {what}");
    }
}

#[test]
fn a_result_that_somebody_else_could_have_written_is_not_used() {
    let damages: [NamedChange<'_, Path>; 4] = [
        ("writable by others", &|file| {
            fs_err::set_permissions(file, std::fs::Permissions::from_mode(0o622)).unwrap();
        }),
        ("a link", &|file| {
            fs_err::rename(file, file.with_extension("moved")).unwrap();
            symlink(file.with_extension("moved"), file).unwrap();
        }),
        ("cut", &|file| {
            let bytes = fs_err::read(file).unwrap();
            fs_err::write(file, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("of another scope", &|file| {
            let mut bytes = fs_err::read(file).unwrap();
            bytes[0] ^= 1;
            fs_err::write(file, bytes).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let place = superproject();
        keep_result(&place);
        assert!(!place.guarded(&[]).watched().has_unsaved_search(), "{what}");
        damage(&results(&place)[0]);
        assert!(place.guarded(&[]).watched().has_unsaved_search(), "{what}");
    }
}

#[test]
fn another_environment_has_a_result_of_its_own() {
    let place = superproject();
    keep_result(&place);
    let policy = Policy::default();
    let other = place.find_with(&policy, &[("GIT_EDITOR", "./edit.sh")]).unwrap();
    assert!(other.watched().has_unsaved_search());
    assert!(!place.guarded(&[]).watched().has_unsaved_search());
}
