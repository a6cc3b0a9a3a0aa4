//! The user of the sandbox, and the names of users and groups.
//!
//! The guest is linked statically and has no name service, so it reads `/etc/passwd` and
//! `/etc/group` directly, passwd(5).

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_proto::code::{Code, Failure};

const PASSWD_FILE: &str = "/etc/passwd";
const GROUP_FILE: &str = "/etc/group";
/// Name that E2B's clients use for the user of any sandbox.
const DEFAULT_NAME: &str = "user";

/// User that everything in the sandbox runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxUser {
    /// Login name; the user id in decimal if the user has no name.
    pub(crate) name: String,
    /// Numeric user id.
    pub(crate) uid: u32,
    /// Numeric id of the primary group.
    pub(crate) gid: u32,
    /// Home directory, which relative paths and `~` start from.
    pub(crate) home: PathBuf,
}

/// User of the guest process. Filled by the first call of [`current_user`].
static CURRENT_USER: Mutex<Option<SandboxUser>> = Mutex::new(None);

/// Returns the user of the guest process.
pub(crate) fn current_user() -> SandboxUser {
    let found = || {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let text = fs_err::read_to_string(PASSWD_FILE).unwrap_or_default();
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        from_passwd(&text, uid, gid, variable("USER"), variable("HOME"))
    };
    // A value is always replaced as a whole, so the value in a poisoned lock is valid.
    CURRENT_USER.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(found).clone()
}

/// Sets the home directory from which relative paths and `~` start, so that it equals the `HOME` of
/// commands. The guest of a container learns its home directory only by this call.
pub(crate) fn move_home(home: &str) {
    if home.starts_with('/') {
        let user = SandboxUser { home: home.into(), ..current_user() };
        *CURRENT_USER.lock().unwrap_or_else(PoisonError::into_inner) = Some(user);
    }
}

/// Returns the user with the given name. A sandbox has only one user, so any other name is refused.
pub(crate) fn find_user(name: &str) -> Result<SandboxUser, Failure> {
    let user = current_user();
    if name.is_empty() || name == user.name || name == DEFAULT_NAME {
        return Ok(user);
    }
    let message =
        format!("this sandbox has one user, `{}`; nothing can be done as `{name}`", user.name);
    Err(Failure::new(Code::Unauthenticated, message))
}

fn from_passwd(
    text: &str,
    uid: u32,
    gid: u32,
    name: Option<String>,
    home: Option<String>,
) -> SandboxUser {
    let entry = parse_lines(text).find(|fields| parse_number(fields, 2) == Some(uid));
    let field = |index: usize| {
        entry.as_ref().and_then(|fields| fields.get(index)).map(|&field| field.to_owned())
    };
    SandboxUser {
        name: field(0).or(name).unwrap_or_else(|| uid.to_string()),
        uid,
        gid,
        home: home
            .or_else(|| field(5))
            .filter(|home| home.starts_with('/'))
            .unwrap_or_else(|| "/".to_owned())
            .into(),
    }
}

/// Names of users and groups at one moment.
#[derive(Debug, Clone)]
pub(crate) struct AccountNames {
    users: Arc<HashMap<u32, String>>,
    groups: Arc<HashMap<u32, String>>,
}

impl AccountNames {
    /// Returns the current names. The files are read again only if they have changed.
    pub(crate) fn load() -> AccountNames {
        static USERS: Mutex<Option<NameTable>> = Mutex::new(None);
        static GROUPS: Mutex<Option<NameTable>> = Mutex::new(None);
        AccountNames {
            users: load_table(&USERS, PASSWD_FILE),
            groups: load_table(&GROUPS, GROUP_FILE),
        }
    }

    /// Returns the name of a user, or the user id in decimal if the user has no name.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// Returns the name of a group, or the group id in decimal if the group has no name.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// Version of a file that was read: inode number, size, and the time of the last status change
/// (seconds and nanoseconds).
type FileVersion = (u64, i64, i64, i64);

#[derive(Debug)]
struct NameTable {
    version: Option<FileVersion>,
    names: Arc<HashMap<u32, String>>,
}

fn load_table(cache: &Mutex<Option<NameTable>>, path: &str) -> Arc<HashMap<u32, String>> {
    // A table is always replaced as a whole, so the table in a poisoned lock is valid.
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let version = file_version(Path::new(path));
    if let Some(table) = cache.as_ref().filter(|table| table.version == version) {
        return Arc::clone(&table.names);
    }
    let text = fs_err::read_to_string(path).unwrap_or_default();
    let names = Arc::new(parse_table(&text));
    *cache = Some(NameTable { version, names: Arc::clone(&names) });
    names
}

fn file_version(path: &Path) -> Option<FileVersion> {
    let stat = rustix::fs::stat(path).ok()?;
    #[expect(
        clippy::useless_conversion,
        reason = "the width of these fields differs between architectures"
    )]
    Some((
        stat.st_ino,
        stat.st_size,
        stat.st_ctime.into(),
        i64::try_from(stat.st_ctime_nsec).unwrap_or_default(),
    ))
}

/// Returns the names by numeric id. If an id has several names, the first counts, as for
/// getpwuid(3).
fn parse_table(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for fields in parse_lines(text) {
        if let Some(id) = parse_number(&fields, 2) {
            names.entry(id).or_insert_with(|| fields[0].to_owned());
        }
    }
    names
}

fn parse_lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(':').collect())
}

fn parse_number(fields: &[&str], index: usize) -> Option<u32> {
    fields.get(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "root:x:0:0:root:/root:/bin/bash\n# a comment\nbroken\n\
                        dev:x:1000:1000:,,,:/home/dev:/bin/zsh\n\
                        twin:x:1000:1000::/elsewhere:/bin/sh\n";

    #[test]
    fn the_user_comes_from_passwd_and_the_home_from_the_variable() {
        let user = from_passwd(TEXT, 1000, 7, Some("ignored".to_owned()), None);
        assert_eq!(
            user,
            SandboxUser { name: "dev".to_owned(), uid: 1000, gid: 7, home: "/home/dev".into() }
        );
        assert_eq!(
            from_passwd(TEXT, 1000, 7, None, Some("/work".to_owned())).home,
            Path::new("/work")
        );
    }

    #[test]
    fn a_user_without_an_entry_is_named_by_the_variable_or_its_number() {
        assert_eq!(from_passwd(TEXT, 4242, 0, Some("guest".to_owned()), None).name, "guest");
        let nobody = from_passwd(TEXT, 4242, 0, None, Some("relative".to_owned()));
        assert_eq!((nobody.name.as_str(), nobody.home.as_path()), ("4242", Path::new("/")));
    }

    #[test]
    fn another_user_is_refused_by_name() {
        assert_eq!(find_user("user").expect("E2B's name is accepted"), current_user());
        assert_eq!(
            find_user(&current_user().name).expect("its own name is accepted"),
            current_user()
        );
        let failure = find_user("somebody else").expect_err("there is one user");
        assert_eq!(failure.code, Code::Unauthenticated);
        assert!(failure.message.contains("`somebody else`"), "{failure}");
    }

    #[test]
    fn the_first_name_of_an_id_counts() {
        let names = parse_table(TEXT);
        assert_eq!(names.get(&1000).map(String::as_str), Some("dev"));
        assert_eq!(names.len(), 2);
    }
}
