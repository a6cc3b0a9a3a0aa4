//! An ordinary user for the tests, created by root and removed after the run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use ringfence_test_ledger::User;

use crate::workspace::{find_program, output_of};

/// Prefix of the user's name. The id of the process that created the user follows.
const USER_PREFIX: &str = "ringfence-test-";
/// Comment in passwd(5) that marks the user as ours.
const USER_COMMENT: &str = "made by cargo xtask test";

pub(super) struct TestUser {
    name: String,
    userdel: PathBuf,
}

impl TestUser {
    /// Creates the user, and removes the users that interrupted runs left behind.
    ///
    /// If that is impossible, prints the reason and returns `None`; tests that need a user then
    /// skip.
    pub(super) fn create() -> Result<Option<Self>> {
        let (Some(useradd), Some(userdel)) = (find_program("useradd"), find_program("userdel"))
        else {
            println!(
                "without an ordinary user: there is no useradd here; tests that need one skip"
            );
            return Ok(None);
        };
        let users = fs_err::read_to_string("/etc/passwd")?;
        for name in left_behind(&users, |process| Path::new("/proc").join(process).exists()) {
            drop(Self { name: name.to_owned(), userdel: userdel.clone() });
        }
        let name = format!("{USER_PREFIX}{}", std::process::id());
        println!("making the user {name} for the tests");
        let arguments = ["--create-home", "--shell", "/bin/sh", "--comment", USER_COMMENT, &name];
        match output_of(Command::new(useradd).args(arguments)) {
            Ok(_) => Ok(Some(Self { name, userdel })),
            Err(error) => {
                eprintln!("warning: without an ordinary user: {error:#}; tests that need one skip");
                Ok(None)
            }
        }
    }

    pub(super) fn account(&self) -> Result<User> {
        User::named(&self.name).map_err(anyhow::Error::msg)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestUser {
    fn drop(&mut self) {
        println!("removing the user {}", self.name);
        let removed =
            output_of(Command::new(&self.userdel).args(["--force", "--remove", &self.name]));
        if let Err(error) = removed {
            eprintln!("warning: the user {} is left behind: {error:#}", self.name);
        }
    }
}

/// Returns our users in passwd(5) whose process has ended.
fn left_behind(passwd: &str, is_alive: impl Fn(&str) -> bool) -> Vec<&str> {
    let ours = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let process = name.strip_prefix(USER_PREFIX)?;
        (fields.nth(3)? == USER_COMMENT && !is_alive(process)).then_some(name)
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_users_of_runs_that_ended_are_left_behind() {
        let passwd = format!(
            "root:x:0:0:{USER_COMMENT}:/root:/bin/sh\n\
             {USER_PREFIX}7:x:1:1:{USER_COMMENT}:/home/a:/bin/sh\n\
             {USER_PREFIX}8:x:2:2:{USER_COMMENT}:/home/b:/bin/sh\n\
             {USER_PREFIX}9:x:3:3:somebody else's:/home/c:/bin/sh\n"
        );
        assert_eq!(left_behind(&passwd, |process| process == "7"), [format!("{USER_PREFIX}8")]);
    }
}
