//! Configuration of ssh on the host: the way to a sandbox, the sandbox's key, and the features that
//! are turned off.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::SshError;
use super::directory::{self, PinnedServer, SshDirectory};
use crate::sandbox::directory::{Name, SandboxDirs};
use crate::{Host, Sandbox};

/// Text at the start of each file of aliases that ringfence made.
const ALIAS_MARK: &str =
    "# Made by ringfence, and removed when the sandbox stops. Its state is in ";
/// Prefix of the aliases that ringfence makes.
const ALIAS_PREFIX: &str = "ringfence-";

/// Way to reach a sandbox by ssh.
#[derive(Debug, Clone)]
pub struct SshAccess {
    name: Name,
    user: String,
    ssh_directory: SshDirectory,
    /// Directory of ringfence's state, and the value of `XDG_STATE_HOME` if it is set
    /// (`state_home`).
    state: PathBuf,
    state_home: Option<String>,
    published: Option<u16>,
    /// Port inside on which the server listens.
    pub(super) port: u16,
}

impl SshAccess {
    pub(super) fn new(
        sandbox: &Sandbox,
        host: &Host,
        ssh_directory: SshDirectory,
        server: PinnedServer,
    ) -> Result<SshAccess, SshError> {
        let name = sandbox.manifest().name.clone();
        let access = SshAccess {
            user: server.user,
            state: state(host).unwrap_or_default(),
            state_home: host.text("XDG_STATE_HOME").map(str::to_owned),
            published: ssh_directory.published(),
            port: server.port,
            name,
            ssh_directory,
        };
        directory::write(&access.known_hosts(), &format!("{} {}\n", access.alias(), server.key))?;
        sweep(host);
        Ok(access)
    }

    /// Returns ssh's name for the sandbox.
    pub fn alias(&self) -> String {
        format!("{ALIAS_PREFIX}{}", self.name)
    }

    /// Returns the name of the user that logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the port of the host's loopback that leads to the server, if a process serves one.
    pub fn published(&self) -> Option<u16> {
        self.published
    }

    /// Returns the path of the file with the server's key.
    pub fn known_hosts(&self) -> PathBuf {
        self.ssh_directory.directory.join("known_hosts")
    }

    /// Returns the sandbox's section of ssh_config(5); `program` is the path of this ringfence.
    pub fn stanza(&self, program: &Path) -> Result<String, SshError> {
        let known_hosts = self.known_hosts();
        let is_odd = |c: char| c.is_control() || "\"$".contains(c);
        let text = known_hosts.to_str().filter(|text| !text.contains(is_odd));
        let text = text.ok_or_else(|| SshError::Unquotable { path: known_hosts.clone() })?;
        let mut stanza = format!(
            "Host {alias}\n    \
             HostName 127.0.0.1\n    \
             HostKeyAlias {alias}\n    \
             User {user}\n    \
             ProxyCommand {command}\n    \
             UserKnownHostsFile \"{known_hosts}\"\n    \
             GlobalKnownHostsFile /dev/null\n    \
             StrictHostKeyChecking yes\n    \
             UpdateHostKeys no\n    \
             CheckHostIP no\n    \
             PreferredAuthentications publickey\n    \
             ForwardAgent no\n    \
             ForwardX11 no\n    \
             PermitLocalCommand no\n",
            alias = self.alias(),
            user = self.user,
            command = self.command(program)?,
            known_hosts = text.replace('%', "%%"),
        );
        if let Some(port) = self.published {
            stanza.push_str(&format!(
                "    # Without ringfence between: ssh -o ProxyCommand=none {}\n",
                self.alias()
            ));
            stanza.push_str(&format!("    Port {port}\n"));
        }
        Ok(stanza)
    }

    /// Returns the command by which ssh reaches the sandbox. The command sets `XDG_STATE_HOME`,
    /// because an editor that runs it later may not have this process's variables.
    fn command(&self, program: &Path) -> Result<String, SshError> {
        let word = |text: &str| format!("'{}'", text.replace('\'', r"'\''").replace('%', "%%"));
        let path = program.to_str().filter(|path| !path.contains(char::is_control));
        let path = path.ok_or_else(|| SshError::Unquotable { path: program.to_path_buf() })?;
        let state =
            self.state_home.as_ref().map(|state| format!("env XDG_STATE_HOME={} ", word(state)));
        Ok(format!("{}{} ssh-proxy {}", state.unwrap_or_default(), word(path), self.name))
    }

    /// Writes a configuration that holds this sandbox alone, and returns its path.
    pub fn write_configuration(&self, program: &Path) -> Result<PathBuf, SshError> {
        let path = self.ssh_directory.directory.join("config");
        directory::write(&path, &self.stanza(program)?)?;
        Ok(path)
    }

    /// Writes an alias, so that every program of the user knows the sandbox by it, if
    /// `~/.ssh/config.d` exists. Returns the path of the file.
    pub fn write_alias(&self, host: &Host, program: &Path) -> Result<Option<PathBuf>, SshError> {
        let Some(directory) = aliases(host).filter(|directory| directory.is_dir()) else {
            return Ok(None);
        };
        let path = directory.join(self.alias());
        let failed = |source| SshError::File { doing: "read", path: path.clone(), source };
        match fs_err::read_to_string(&path) {
            Ok(text) if !text.starts_with(ALIAS_MARK) => return Err(SshError::NotOurs { path }),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        directory::write(
            &path,
            &format!("{}\n{}", alias_mark(&self.state), self.stanza(program)?),
        )?;
        Ok(Some(path))
    }
}

/// Removes the alias of a sandbox that has ended.
pub fn forget(host: &Host, name: &Name) {
    let (Some(directory), Some(state)) = (aliases(host), state(host)) else { return };
    remove(&directory.join(format!("{ALIAS_PREFIX}{name}")), &state);
}

/// Removes the aliases of sandboxes that no process keeps any more.
pub fn sweep(host: &Host) {
    let (Some(directory), Some(state), Ok(sandbox_dirs)) =
        (aliases(host), state(host), SandboxDirs::for_host(host))
    else {
        return;
    };
    for entry in fs_err::read_dir(directory).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let name = file.to_str().and_then(|file| Name::new(file.strip_prefix(ALIAS_PREFIX)?).ok());
        if name.is_some_and(|name| !sandbox_dirs.is_kept(&name)) {
            remove(&entry.path(), &state);
        }
    }
}

/// Removes an alias, if ringfence made it with this state directory. The sandboxes of another state
/// directory are not known here.
fn remove(path: &Path, state: &Path) {
    let is_ours = fs_err::read_to_string(path)
        .is_ok_and(|text| text.lines().next() == Some(&alias_mark(state)));
    if is_ours && let Err(error) = fs_err::remove_file(path) {
        tracing::debug!(%error, "an ssh alias was not removed");
    }
}

fn alias_mark(state: &Path) -> String {
    format!("{ALIAS_MARK}{}", state.display())
}

fn aliases(host: &Host) -> Option<PathBuf> {
    host.home.as_ref().map(|home| home.join(".ssh/config.d"))
}

fn state(host: &Host) -> Option<PathBuf> {
    SandboxDirs::for_host(host).ok().map(|sandbox_dirs| sandbox_dirs.state().to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AliasFixture {
        home: tempfile::TempDir,
        host: Host,
    }

    impl AliasFixture {
        fn new() -> AliasFixture {
            let home = tempfile::tempdir().unwrap();
            let variables = [("HOME".into(), home.path().into())].into_iter().collect();
            AliasFixture { host: Host::new(variables, "/".into()), home }
        }

        fn access(&self, name: &str) -> SshAccess {
            let ssh_directory = SshDirectory { directory: self.home.path().join("50% off") };
            let state = state(&self.host).unwrap();
            let name = Name::new(name).unwrap();
            SshAccess {
                name,
                user: "dev".into(),
                ssh_directory,
                state,
                state_home: None,
                published: Some(4022),
                port: 2222,
            }
        }

        fn aliases(&self) -> Vec<String> {
            let entries = fs_err::read_dir(self.home.path().join(".ssh/config.d")).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_stanza_pins_the_key_and_gives_nothing_away() {
        let scene = AliasFixture::new();
        let mut access = scene.access("one");
        let stanza = access.stanza(Path::new("/opt/it's 100%/ringfence")).unwrap();
        assert!(
            stanza.contains(r"ProxyCommand '/opt/it'\''s 100%%/ringfence' ssh-proxy one"),
            "{stanza}"
        );
        assert!(stanza.contains("/50%% off/known_hosts\"\n"), "{stanza}");
        for line in [
            "StrictHostKeyChecking yes",
            "HostKeyAlias ringfence-one",
            "ForwardAgent no",
            "Port 4022",
        ] {
            assert!(stanza.contains(line), "{line}");
        }
        access.state_home = Some("/s".into());
        let stanza = access.stanza(Path::new("/r")).unwrap();
        assert!(
            stanza.contains("ProxyCommand env XDG_STATE_HOME='/s' '/r' ssh-proxy one\n"),
            "{stanza}"
        );
    }

    #[test]
    fn a_path_that_would_end_its_line_or_its_quotes_is_refused() {
        let scene = AliasFixture::new();
        let mut access = scene.access("one");
        assert!(matches!(
            access.stanza(Path::new("/a\nUser root")),
            Err(SshError::Unquotable { .. })
        ));
        for odd in ["/a\"b", "/a${HOME}", "/a\nb"] {
            access.ssh_directory.directory = odd.into();
            assert!(
                matches!(access.stanza(Path::new("/r")), Err(SshError::Unquotable { .. })),
                "{odd}"
            );
        }
    }

    #[test]
    fn an_alias_is_written_only_where_aliases_are_kept_and_goes_with_its_sandbox() {
        let scene = AliasFixture::new();
        let (access, program) = (scene.access("one"), Path::new("/r"));
        assert_eq!(access.write_alias(&scene.host, program).unwrap(), None);
        let directory = scene.home.path().join(".ssh/config.d");
        fs_err::create_dir_all(&directory).unwrap();
        let path = access.write_alias(&scene.host, program).unwrap().unwrap();
        assert_eq!(path, directory.join("ringfence-one"));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        scene.access("two").write_alias(&scene.host, program).unwrap();
        assert_eq!(scene.aliases(), ["ringfence-one", "ringfence-two"]);
        forget(&scene.host, &Name::new("one").unwrap());
        assert_eq!(scene.aliases(), ["ringfence-two"]);
    }

    #[test]
    fn only_aliases_of_ours_whose_sandboxes_are_gone_are_swept() {
        let scene = AliasFixture::new();
        let directory = scene.home.path().join(".ssh/config.d");
        fs_err::create_dir_all(&directory).unwrap();
        let sandbox_dirs = SandboxDirs::for_host(&scene.host).unwrap();
        let kept = sandbox_dirs.claim(Name::new("kept").unwrap()).unwrap();
        for name in ["kept", "gone"] {
            scene.access(name).write_alias(&scene.host, Path::new("/r")).unwrap();
        }
        fs_err::write(directory.join("ringfence-mine"), "Host ringfence-mine\n").unwrap();
        fs_err::write(directory.join("ringfence-other"), format!("{ALIAS_MARK}/another/state\n"))
            .unwrap();
        sweep(&scene.host);
        assert_eq!(scene.aliases(), ["ringfence-kept", "ringfence-mine", "ringfence-other"]);
        let taken = scene.access("mine").write_alias(&scene.host, Path::new("/r"));
        assert!(matches!(taken, Err(SshError::NotOurs { .. })));
        kept.remove();
    }
}
