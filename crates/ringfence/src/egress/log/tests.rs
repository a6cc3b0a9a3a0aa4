use ringfence_egress::RequestKind;

use super::*;

fn denied(target: &str) -> LogEntry {
    let denial = ringfence_egress::Denial {
        target: target.to_owned(),
        reason: DenialReason::Unlisted,
        via: RequestKind::Connect,
        policy: None,
    };
    let (time, sandbox) = (Timestamp::now().to_string(), Some("own".to_owned()));
    LogEntry {
        time,
        sandbox,
        workspace: "/w".into(),
        event: EgressEvent::Denied(denial),
        number: None,
    }
}

fn targets(entries: &[LogEntry]) -> Vec<&str> {
    let target = |entry: &'_ LogEntry| match &entry.event {
        EgressEvent::Denied(denial) => Some(denial.target.len()),
        _ => None,
    };
    assert!(entries.iter().all(|entry| target(entry).is_some()));
    entries
        .iter()
        .filter_map(|entry| {
            if let EgressEvent::Denied(denial) = &entry.event {
                Some(&*denial.target)
            } else {
                None
            }
        })
        .collect()
}

/// Returns the total length of all files in a directory, in bytes.
fn size_of(directory: &Path) -> u64 {
    let files = fs_err::read_dir(directory).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_flood_leaves_the_first_and_the_last_events_of_a_sandbox_and_the_number_of_all() {
    let sandbox_dir = tempfile::tempdir().unwrap();
    let mut log = OwnLog::new(sandbox_dir.path());
    log.write(denied("first.test:443"));
    for number in 0..30_000 {
        log.write(denied(&format!("{number}.flood.test:443")));
    }
    log.write(denied("last.test:443"));
    let recorded = read_numbered(&log.path).unwrap();
    let found = targets(&recorded.entries);
    assert_eq!((found[0], found[found.len() - 1]), ("first.test:443", "last.test:443"));
    assert!(recorded.omitted > 0);
    assert_eq!(recorded.omitted + recorded.entries.len() as u64, 30_002);
    assert_eq!(last_number(&log.path), 30_002);
    assert!(size_of(sandbox_dir.path()) <= 3 * MAX_SANDBOX_PART_BYTES);
    // Another process continues with the next number.
    let mut log = OwnLog::new(sandbox_dir.path());
    log.write(denied("later.test:443"));
    assert_eq!(last_number(&log.path), 30_003);
}

#[test]
fn a_result_tells_of_the_denials_since_its_command_began_whatever_became_of_the_log() {
    let sandbox_dir = tempfile::tempdir().unwrap();
    let mut log = OwnLog::new(sandbox_dir.path());
    let path = log.path.clone();
    let since = |start: u64| -> Vec<String> {
        denials_since(&path, start, "own").into_iter().map(|denial| denial.what).collect()
    };
    assert!(since(0).is_empty());
    for number in 0..12_000 {
        log.write(denied(&format!("{number}.flood.test:443")));
    }
    let start = last_number(&path);
    assert_eq!(start, 12_000);
    assert!(since(start).is_empty());
    log.write(denied("mine.test:443"));
    assert_eq!(since(start), ["mine.test:443: no rule of the policy allows this target"]);
    assert!(
        denials_since(&path, start, "other").iter().all(|denial| denial.what.starts_with("1 more"))
    );
    // The first denial is still counted after a command has flooded its own log.
    for number in 0..30_000 {
        log.write(denied(&format!("{number}.again.test:443")));
    }
    let reported = since(start);
    assert_eq!(reported.len(), MAX_LISTED_DENIALS + 1);
    let more: u64 = reported[MAX_LISTED_DENIALS].split(' ').next().unwrap().parse().unwrap();
    assert_eq!(more + MAX_LISTED_DENIALS as u64, 30_001);
}

#[test]
fn the_log_of_a_sandbox_that_ends_goes_to_its_user() {
    let (sandbox_dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    hand_over(sandbox_dir.path(), state.path());
    assert!(!state.path().join(CURRENT_FILE).exists(), "nothing was denied");
    let mut log = OwnLog::new(sandbox_dir.path());
    log.write(denied("first.test:443"));
    hand_over(sandbox_dir.path(), state.path());
    assert_eq!(
        targets(&read_part(&state.path().join(CURRENT_FILE)).unwrap().entries),
        ["first.test:443"]
    );

    for number in 0..30_000 {
        log.write(denied(&format!("{number}.flood.test:443")));
    }
    log.write(denied("last.test:443"));
    let state = tempfile::tempdir().unwrap();
    hand_over(sandbox_dir.path(), state.path());
    let recorded = read_part(&state.path().join(CURRENT_FILE)).unwrap();
    let found = targets(&recorded.entries);
    assert_eq!((found[0], found[found.len() - 1]), ("first.test:443", "last.test:443"));
    assert_eq!(recorded.omitted + found.len() as u64, 30_002);
    assert!(size_of(state.path()) <= MAX_SHARE_BYTES);
}

#[test]
fn one_run_takes_its_share_of_a_users_log_and_the_rest_is_counted() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(CURRENT_FILE);
    SharedLog::new(state.path()).write(denied("earlier.test:443"));
    let mut log = SharedLog::new(state.path());
    for number in 0..20_000 {
        log.write(denied(&format!("{number}.flood.test:443")));
    }
    // A process that is killed leaves a count, too.
    let killed = read_part(&path).unwrap();
    assert!(killed.omitted > (20_001 - killed.entries.len() as u64) / 2);
    drop(log);
    let recorded = read_part(&path).unwrap();
    assert_eq!(targets(&recorded.entries)[0], "earlier.test:443");
    assert_eq!(recorded.omitted + recorded.entries.len() as u64, 20_001);
    assert!(size_of(state.path()) < MAX_SHARE_BYTES + 2 * MAX_LINE_BYTES);
}

#[test]
fn events_dropped_with_an_old_part_are_counted() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(CURRENT_FILE);
    for round in 0..30 {
        let mut log = SharedLog::new(state.path());
        for number in 0..7_000 {
            log.write(denied(&format!("{number}.round{round}.test:443")));
        }
    }
    let (mut old, new) =
        (read_part(&path.with_file_name(PREVIOUS_FILE)).unwrap(), read_part(&path).unwrap());
    assert!(!old.entries.is_empty() && !new.entries.is_empty());
    old.add(new);
    assert_eq!(old.omitted + old.entries.len() as u64, 30 * 7_000);
    assert!(size_of(state.path()) <= 2 * (MAX_PART_BYTES + 2 * MAX_SHARE_BYTES));
}

#[test]
fn a_run_goes_on_in_the_new_part_that_other_runs_have_begun() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(CURRENT_FILE);
    let mut long = SharedLog::new(state.path());
    long.write(denied("early.test:443"));
    for rotations in 1..=2 {
        let inode = fs_err::metadata(&path).unwrap().ino();
        let mut events = 0;
        while fs_err::metadata(&path).unwrap().ino() == inode {
            let mut log = SharedLog::new(state.path());
            for number in 0..7_000 {
                log.write(denied(&format!("{number}.flood.test:443")));
            }
            events += 7_000;
        }
        assert!(events > 7_000, "one share does not fill the log");
        let late = format!("late-{rotations}.test:443");
        long.write(denied(&late));
        assert_eq!(targets(&read_part(&path).unwrap().entries).last(), Some(&&*late));
    }
    // The run also continues if all parts of the log are gone.
    fs_err::remove_file(&path).unwrap();
    long.write(denied("last.test:443"));
    assert_eq!(targets(&read_part(&path).unwrap().entries), ["last.test:443"]);
}

#[test]
fn text_of_a_client_makes_no_line_longer_than_the_limit() {
    let sandbox_dir = tempfile::tempdir().unwrap();
    let mut log = OwnLog::new(sandbox_dir.path());
    let mut long = denied(&"\u{1}".repeat(60_000));
    let EgressEvent::Denied(denial) = &mut long.event else { unreachable!("it is a denial") };
    denial.reason = DenialReason::Malformed { fault: "x".repeat(60_000) };
    log.write(long);
    log.write(denied("short.test:443"));
    let recorded = read_numbered(&log.path).unwrap();
    assert_eq!((recorded.entries.len(), recorded.omitted), (2, 0));
    assert!(size_of(sandbox_dir.path()) < 2 * MAX_LINE_BYTES);
    assert_eq!(last_number(&log.path), 2);
}
