//! Subjects of the tests: the `ringfence` binary, the ordinary user who runs it, and the SDKs that
//! drive it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::{
    BINARY_VARIABLE, E2B_JAVASCRIPT_VARIABLE, E2B_PYTHON_VARIABLE, FRAMEWORKS_PYTHON_VARIABLE,
    MCP_PYTHON_VARIABLE, OPENAI_AGENTS_PYTHON_VARIABLE, PLAYWRIGHT_PYTHON_VARIABLE,
    PLOTTING_PYTHON_VARIABLE, USER_VARIABLE,
};

/// Returns the path of the `ringfence` binary under test: the binary that `cargo xtask test` built,
/// or cargo's own.
pub fn binary() -> PathBuf {
    std::env::var_os(BINARY_VARIABLE).map_or_else(beside_this_test, PathBuf::from)
}

/// Derives `target/debug/ringfence` from `target/debug/deps/a_test-0123`.
fn beside_this_test() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own program");
    own.ancestors().nth(2).expect("cargo puts tests in deps/").join("ringfence")
}

/// Returns the Python interpreter for which `cargo xtask test` installed the `e2b` package.
pub fn e2b_python() -> Result<PathBuf, String> {
    interpreter(E2B_PYTHON_VARIABLE)
}

/// Returns the Python interpreter for which `cargo xtask test` installed `langchain-e2b` and
/// `smolagents`.
pub fn frameworks_python() -> Result<PathBuf, String> {
    interpreter(FRAMEWORKS_PYTHON_VARIABLE)
}

/// Returns the Python interpreter for which `cargo xtask test` installed `openai-agents`.
pub fn openai_agents_python() -> Result<PathBuf, String> {
    interpreter(OPENAI_AGENTS_PYTHON_VARIABLE)
}

/// Returns the Python interpreter for which `cargo xtask test` installed the `mcp` package.
pub fn mcp_python() -> Result<PathBuf, String> {
    interpreter(MCP_PYTHON_VARIABLE)
}

/// Returns the Python interpreter for which `cargo xtask test` installed `pandas` and `matplotlib`.
pub fn plotting_python() -> Result<PathBuf, String> {
    interpreter(PLOTTING_PYTHON_VARIABLE)
}

/// Returns the Python interpreter for which `cargo xtask test` installed the `playwright` package.
pub fn playwright_python() -> Result<PathBuf, String> {
    interpreter(PLAYWRIGHT_PYTHON_VARIABLE)
}

fn interpreter(variable: &str) -> Result<PathBuf, String> {
    let interpreter = std::env::var_os(variable).map(PathBuf::from);
    interpreter.ok_or_else(|| format!("{variable} names no interpreter; use `cargo xtask test`"))
}

/// Returns the directory in which `cargo xtask test` installed E2B's packages for JavaScript.
pub fn e2b_javascript() -> Result<PathBuf, String> {
    let directory = std::env::var_os(E2B_JAVASCRIPT_VARIABLE).map(PathBuf::from);
    directory.ok_or_else(|| {
        format!("{E2B_JAVASCRIPT_VARIABLE} names no directory; use `cargo xtask test`")
    })
}

/// A user without privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name, as in passwd(5).
    pub name: String,
    /// Numeric user id.
    pub uid: u32,
    /// Id of the user's own group.
    pub gid: u32,
    /// Path of the home directory.
    pub home: PathBuf,
}

impl User {
    /// Returns the ordinary user of the tests: the user who runs them, or the user that was created
    /// for them if root runs them.
    pub fn for_tests() -> Result<Self, String> {
        let own = rustix::process::geteuid();
        if !own.is_root() {
            let is_own = |user: &Self| user.uid == own.as_raw();
            return Self::find(&passwd()?, is_own)
                .ok_or_else(|| format!("the user id {} has no name", own.as_raw()));
        }
        let name = std::env::var(USER_VARIABLE).map_err(|_| {
            format!(
                "the tests run as root and {USER_VARIABLE} names no user; use `cargo xtask test`"
            )
        })?;
        Self::named(&name)
    }

    /// Finds a user by the login name.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::find(&passwd()?, |user| user.name == name)
            .ok_or_else(|| format!("there is no user `{name}`"))
    }

    /// Returns a command that this user runs at home, with an environment of the user's own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name)
            .current_dir(&self.home);
        if rustix::process::geteuid().is_root() {
            // A change of the user id away from root also clears root's supplementary groups
            // (CommandExt::uid).
            command.gid(self.gid).uid(self.uid);
        }
        command
    }

    fn find(passwd: &str, wanted: impl Fn(&Self) -> bool) -> Option<Self> {
        passwd.lines().filter_map(Self::parse).find(wanted)
    }

    /// Parses a line of passwd(5).
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _password, uid, gid, _comment, home, _shell] = fields[..] else { return None };
        Some(Self {
            name: name.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: home.into(),
        })
    }
}

fn passwd() -> Result<String, String> {
    fs_err::read_to_string("/etc/passwd").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
ringfence-test-12:x:7:8::/home/other:/bin/sh
broken line
ringfence-test-1:x:1001:1002::/home/one:
";

    #[test]
    fn a_user_is_found_by_exactly_that_name() {
        let found = User::find(PASSWD, |user| user.name == "ringfence-test-1");
        let home = PathBuf::from("/home/one");
        assert_eq!(
            found,
            Some(User { name: "ringfence-test-1".to_owned(), uid: 1001, gid: 1002, home })
        );
        assert_eq!(User::find(PASSWD, |user| user.name == "ringfence-test"), None);
    }

    #[test]
    fn the_binary_is_looked_for_where_cargo_puts_it() {
        let found = beside_this_test();
        assert!(found.ends_with("ringfence"), "{}", found.display());
        assert!(std::env::current_exe().unwrap().starts_with(found.parent().unwrap().join("deps")));
    }
}
