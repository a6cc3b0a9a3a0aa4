use std::os::unix::fs::symlink;

use ringfence_core::Backend;
use ringfence_core::result::{DroppedBytes, RunMetadata};

use super::*;

fn result(stdout: &str) -> ExecutionResult {
    ExecutionResult {
        id: "0123".to_owned(),
        exit_code: Some(1),
        signal: None,
        ok: false,
        timed_out: false,
        oom_killed: false,
        stdout: stdout.to_owned(),
        stderr: String::new(),
        dropped: DroppedBytes::default(),
        duration: 0.1,
        meta: RunMetadata::new(
            Backend::Native,
            "native works here".to_owned(),
            Default::default(),
            "0".repeat(64),
            Default::default(),
        ),
    }
}

/// Makes a directory with a chain of `length` records, and returns their paths.
fn chain(length: usize) -> (tempfile::TempDir, Records, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let records =
        Records::at(directory.path().canonicalize().unwrap().join("artifacts/executions"));
    let append = |_| records.append(&Command::new("false"), result(""), &[]).unwrap();
    let paths = (0..length).map(append).collect();
    (directory, records, paths)
}

#[track_caller]
fn check(records: &Records, expected: &[&str]) {
    let told = records.verify().unwrap();
    let matches = told.len() == expected.len()
        && told.iter().zip(expected).all(|(told, part)| told.contains(part));
    assert!(matches, "{told:#?}");
}

#[test]
fn records_form_a_chain_that_verifies() {
    let (_directory, records, paths) = chain(3);
    assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true; 3]);
    let kept: Vec<RunRecord> =
        records.entries().unwrap().into_iter().map(|entry| entry.record.unwrap()).collect();
    assert_eq!(kept[0].previous, None);
    assert_eq!(kept[1].previous.as_ref(), Some(&kept[0].hash));
    assert_eq!(kept[2].previous.as_ref(), Some(&kept[1].hash));
    check(&records, &[]);
}

#[test]
fn a_directory_without_records_has_no_fault() {
    let (_directory, records, _) = chain(0);
    assert!(records.entries().unwrap().is_empty());
    check(&records, &[]);
}

#[test]
fn each_kind_of_tampering_shows() {
    let (_directory, records, paths) = chain(3);
    fs_err::write(
        &paths[1],
        fs_err::read_to_string(&paths[1]).unwrap().replace("\"false\"", "\"forged\""),
    )
    .unwrap();
    check(&records, &["was altered"]);

    let (_directory, records, paths) = chain(3);
    fs_err::write(&paths[1], "{").unwrap();
    check(&records, &["is not a record", "was removed"]);

    let (_directory, records, paths) = chain(3);
    fs_err::remove_file(&paths[1]).unwrap();
    check(&records, &["a record before"]);

    let (_directory, records, paths) = chain(3);
    fs_err::remove_file(&paths[2]).unwrap();
    check(&records, &["the newest record was removed"]);

    let (_directory, records, paths) = chain(3);
    fs_err::remove_file(paths[0].with_file_name(NEWEST_FILE)).unwrap();
    check(&records, &["`newest` was removed"]);

    let (_directory, records, paths) = chain(3);
    let last = records.entries().unwrap().pop().unwrap().record.unwrap();
    let added = RunRecord::seal(Some(last.hash), "later".to_owned(), Vec::new(), None, result(""));
    fs_err::write(paths[0].with_file_name("9.json"), serde_json::to_string(&added).unwrap())
        .unwrap();
    check(&records, &["`9.json` was added by somebody else"]);
}

/// Returns records that are counted in a state directory beside them.
fn counted(directory: &Path) -> Records {
    let variables = [("XDG_STATE_HOME".into(), directory.join("state").into())];
    Records::on(
        &Host::new(variables.into(), directory.to_path_buf()),
        Path::new("artifacts/executions"),
    )
}

#[test]
fn the_removal_of_every_record_shows() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let records = counted(&root);
    let append = || records.append(&Command::new("false"), result(""), &[]).unwrap();
    check(&records, &[]);
    append();
    append();
    check(&records, &[]);
    fs_err::remove_dir_all(root.join("artifacts")).unwrap();
    check(&records, &["2 records are known to have been written here; 0 are there"]);
    append();
    check(&records, &["3 records are known to have been written here; 1 is there"]);

    // Forged records verify as a chain, but are not the records that were written.
    fs_err::remove_dir_all(root.join("artifacts")).unwrap();
    let forged = Records::at(records.directory());
    for _ in 0..3 {
        forged.append(&Command::new("true"), result(""), &[]).unwrap();
    }
    check(&forged, &[]);
    check(&records, &["3 are there, and other records were put in their place"]);
    append();
    check(&records, &["4 are there, and other records were put in their place"]);

    // A user who removed the records says so by deleting the count.
    fs_err::remove_dir_all(root.join("state")).unwrap();
    check(&records, &[]);
}

#[test]
fn records_that_were_moved_or_are_older_than_their_count_raise_no_alarm() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let records = counted(&root);
    let uncounted = Records::at(records.directory());
    for records in [&uncounted, &records, &records] {
        records.append(&Command::new("false"), result(""), &[]).unwrap();
    }
    check(&records, &[]);
    fs_err::create_dir(root.join("other")).unwrap();
    fs_err::rename(root.join("artifacts"), root.join("other/artifacts")).unwrap();
    let variables = [("XDG_STATE_HOME".into(), root.join("state").into())];
    let moved = Records::on(
        &Host::new(variables.into(), root.join("other")),
        Path::new("artifacts/executions"),
    );
    check(&moved, &[]);
    moved.append(&Command::new("false"), result(""), &[]).unwrap();
    check(&moved, &[]);
}

#[test]
fn the_values_of_variables_are_in_no_record() {
    let (_directory, records, _) = chain(0);
    let command = Command::new("login").argument("--token=hunter22");
    let path =
        records.append(&command, result("it is hunter22\n"), &["hunter22".to_owned()]).unwrap();
    let text = fs_err::read_to_string(path).unwrap();
    assert!(
        !text.contains("hunter22") && text.contains("--token=***") && text.contains("it is ***"),
        "{text}"
    );
}

#[test]
fn a_planted_link_in_place_of_the_directory_is_not_followed() {
    let (directory, records, _) = chain(0);
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), directory.path().join("artifacts")).unwrap();
    let error = records.append(&Command::new("false"), result(""), &[]).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    assert!(error.hint().starts_with("symbolic links are not followed there"));
    assert_eq!(fs_err::read_dir(elsewhere.path()).unwrap().count(), 0);
    assert!(records.verify().is_err());
}

#[test]
fn planted_links_in_place_of_files_are_not_followed() {
    let (directory, records, paths) = chain(1);
    let target = directory.path().join("target");
    fs_err::write(&target, "precious").unwrap();
    for name in [format!(".{NEWEST_FILE}.unfinished"), NEWEST_FILE.to_owned()] {
        let link = paths[0].with_file_name(name);
        let _ = fs_err::remove_file(&link); // the first link does not exist
        symlink(&target, &link).unwrap();
        assert!(records.append(&Command::new("false"), result(""), &[]).is_err());
        assert_eq!(fs_err::read_to_string(&target).unwrap(), "precious");
        fs_err::remove_file(&link).unwrap();
    }
}

#[test]
fn a_planted_pipe_makes_nobody_wait() {
    let (_directory, records, paths) = chain(1);
    rustix::fs::mknodat(
        CWD,
        paths[0].with_file_name("x.json"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    check(&records, &["`x.json` is not a record"]);
}

#[test]
fn a_planted_giant_is_not_read() {
    let (_directory, records, paths) = chain(1);
    for name in ["x.json", NEWEST_FILE] {
        let path = paths[0].with_file_name(name);
        fs_err::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    }
    let error = records.append(&Command::new("false"), result(""), &[]).unwrap_err();
    assert!(error.source.to_string().contains("it is longer than"), "{}", error.source);
    assert!(records.entries().unwrap().iter().any(|file| file.record.is_err()));
}

#[test]
fn a_file_that_cannot_be_finished_is_not_left_half_written() {
    let place = tempfile::tempdir().unwrap();
    fs_err::create_dir_all(place.path().join("taken/by a directory")).unwrap();
    let directory = open_directory(&place.path().canonicalize().unwrap()).unwrap();
    write_in(&directory, "free", b"text").unwrap();
    assert!(write_in(&directory, "taken", b"text").is_err());
    let mut names: Vec<_> =
        fs_err::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["free", "taken"]);
}
